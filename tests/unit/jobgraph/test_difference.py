"""The differences between two versions of a job (H2)."""

from __future__ import annotations

from msgspec.structs import replace

from minflinkd.jobgraph.difference import Change, SettingChange, VertexChange, setting_changes, vertex_changes
from minflinkd.jobgraph.model import (
    Artifact,
    Checkpointing,
    CheckpointMode,
    Input,
    JobGraph,
    Restore,
    Sink,
    Source,
    Vertex,
)
from minflinkd.runtime.ids import VertexId
from minflinkd.runtime.units import Duration

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


def test_groups_of_settings_are_named_key_by_key_in_the_form_of_a_job_file() -> None:
    """A key that was added, changed or removed is a change of its own (H2)."""
    old = replace(
        OLD,
        spark={"spark.sql.ansi.enabled": "false"},
        checkpointing=Checkpointing(interval=Duration(5.0)),
        artifacts=(Artifact(name="a.py", path="a.py"), Artifact(name="b.py", key="plain", size=3)),
    )
    new = replace(
        OLD,
        name="other",
        spark={"spark.sql.ansi.enabled": "true"},
        checkpointing=Checkpointing(interval=Duration(90.0), mode=CheckpointMode.AT_LEAST_ONCE),
        artifacts=(Artifact(name="b.py", key="other", size=4), Artifact(name="c.py", key="p-1-2", size=3)),
        parallelism=2,
    )
    assert setting_changes(old, new) == (
        SettingChange(path="artifacts.b.py", before='"plain"', after='"other"'),
        SettingChange(path="artifacts.c.py", after='"p-1"'),
        SettingChange(path="checkpointing.interval", before="5.0", after="90.0"),
        SettingChange(path="checkpointing.mode", after='"at-least-once"'),
        SettingChange(path="name", before='"delays"', after='"other"'),
        SettingChange(path="parallelism", after="2"),
        SettingChange(path="spark.spark.sql.ansi.enabled", before='"false"', after='"true"'),
    )


def test_what_a_vertex_no_longer_says_has_changed_too() -> None:
    """H2."""
    flights, late, out = OLD.vertices
    old = replace(OLD, vertices=(flights, replace(late, parallelism=2), out))
    assert vertex_changes(old, OLD) == (VertexChange(vertex="late", change=Change.CHANGED, fields=("parallelism",)),)
    assert vertex_changes(OLD, replace(OLD, vertices=(out, late, flights))) == (), "their order says nothing"
