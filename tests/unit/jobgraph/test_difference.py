"""The differences between two versions of a job (H2)."""

from __future__ import annotations

from msgspec.structs import replace

from minflinkd.jobgraph.difference import Change, SettingChange, VertexChange, setting_changes, vertex_changes
from minflinkd.jobgraph.model import Artifact, Input, JobGraph, Restore, Sink, Source, Vertex
from minflinkd.runtime.ids import VertexId

OLD = JobGraph(
    name="delays",
    params={"minutes": 60},
    vertices=(
        Vertex(id=VertexId("flights"), source=Source(format="rate")),
        Vertex(id=VertexId("late"), inputs=(Input(id=VertexId("flights")),), sql="SELECT 1"),
        Vertex(id=VertexId("out"), inputs=(Input(id=VertexId("late")),), sink=Sink(format="console")),
    ),
    artifacts=(Artifact(name="a.py", key=f"p-{'1' * 64}-{'a' * 32}", size=3),),
)


def test_a_version_differs_in_nothing_from_itself() -> None:
    """H2."""
    assert vertex_changes(OLD, OLD) == setting_changes(OLD, OLD) == ()


def test_vertices_that_came_went_or_changed_are_named_with_their_fields() -> None:
    """H2."""
    flights, late, _ = OLD.vertices
    other = replace(late, sql="SELECT 2", parallelism=2)
    new = replace(OLD, vertices=(flights, other, Vertex(id=VertexId("seen"), sink=Sink(format="console"))))
    assert vertex_changes(OLD, new) == (
        VertexChange(vertex="late", change=Change.CHANGED, fields=("parallelism", "sql")),
        VertexChange(vertex="seen", change=Change.ADDED),
        VertexChange(vertex="out", change=Change.REMOVED),
    )


def test_settings_are_named_one_by_one() -> None:
    """What a job was started from is not a setting (H2)."""
    new = replace(OLD, params={"minutes": 30, "carrier": "AA"}, parallelism=4, restore=Restore(path="/x"))
    assert setting_changes(OLD, new) == (
        SettingChange(path="parallelism", after="4"),
        SettingChange(path="params.carrier", after='"AA"'),
        SettingChange(path="params.minutes", before="60", after="30"),
    )


def test_an_artifact_that_was_uploaded_again_with_the_same_content_is_no_change() -> None:
    """Only its content counts (H1)."""
    again = replace(OLD, artifacts=(Artifact(name="a.py", key=f"p-{'1' * 64}-{'b' * 32}", size=3),))
    other = replace(OLD, artifacts=(Artifact(name="a.py", key=f"p-{'2' * 64}-{'b' * 32}", size=3),))
    assert setting_changes(OLD, again) == ()
    assert [change.path for change in setting_changes(OLD, other)] == ["artifacts.a.py"]
