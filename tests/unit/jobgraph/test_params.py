from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.jobgraph.model import Sink, Source, Vertex, Watermark
from minflinkd.jobgraph.params import InvalidParam, resolve, substitute
from minflinkd.runtime.ids import VertexId


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("window(time, '${minutes} minutes')", "window(time, '60 minutes')"),
        ("${flag} and ${ratio}", "true and 0.5"),
        ("$${minutes} is ${minutes}", "${minutes} is 60"),
        ("$minutes {minutes} $", "$minutes {minutes} $"),
        ("${nested}", "${minutes}"),
    ],
)
def test_params_stand_in_texts(text: str, result: str) -> None:
    """`${name}` is replaced by the param's value, once (J3)."""
    params = {"minutes": 60, "flag": True, "ratio": 0.5, "nested": "${minutes}"}
    assert substitute(text, params) == result


@pytest.mark.parametrize("text", ["${nobody}", "${}", "${list}", "${nothing}", "${ minutes }"])
def test_a_place_without_a_value_is_refused(text: str) -> None:
    """J4."""
    with pytest.raises(InvalidParam):
        substitute(text, {"minutes": 60, "list": [1], "nothing": None})


def test_a_secret_stands_in_options_only_and_is_known_only_where_it_is_asked_for() -> None:
    """A path or SQL text is shown and stored (E44)."""
    sink = Sink(format="jdbc", options={"password": "${secret:db.key}", "url": "jdbc:${n}", "x": "$${secret:a}"})
    vertex = Vertex(id=VertexId("a"), sink=sink)
    asked: list[str] = []

    def secret(name: str) -> str:
        asked.append(name)
        return "${n}"  # is not replaced again

    resolved = resolve(vertex, {"n": 7}, secret).sink
    assert resolved is not None
    assert resolved.options == {"password": "${n}", "url": "jdbc:7", "x": "${secret:a}"}
    assert asked == ["db.key"]
    unresolved = resolve(vertex, {"n": 7}).sink
    assert unresolved is not None
    assert unresolved.options["password"] == "${secret:db.key}"
    for text in ("${secret:a}", "/data/${secret:a}"):
        with pytest.raises(InvalidParam, match="may not stand here"):
            substitute(text, {"secret:a": "x"})
    for name in ("", "../etc/passwd", "a/b", ".a", "a b"):
        with pytest.raises(InvalidParam, match="no name of a secret"):
            resolve(
                Vertex(id=VertexId("a"), sink=Sink(format="json", options={"x": f"${{secret:{name}}}"})), {}, secret
            )
    assert asked == ["db.key"]


def test_a_missing_param_has_the_nearest_one_as_hint() -> None:
    """The hint names the nearest known param (J4)."""
    with pytest.raises(InvalidParam, match="did you mean minutes"):
        substitute("${minuts}", {"minutes": 60})


def test_a_vertex_is_resolved_wherever_params_may_stand() -> None:
    """J3."""
    options = {"maxFilesPerTrigger": "${n}"}
    source = Source(format="json", path="/${n}", schema="a${n} INT", options=options)
    vertex = Vertex(id=VertexId("a"), source=source, watermark=Watermark(column="time", delay="${n} hours"))
    assert resolve(vertex, {"n": 7}) == Vertex(
        id=VertexId("a"),
        source=Source(format="json", path="/7", schema="a7 INT", options={"maxFilesPerTrigger": "7"}),
        watermark=Watermark(column="time", delay="7 hours"),
    )
    sink = Vertex(id=VertexId("b"), sink=Sink(format="json", path="/${n}"))
    assert resolve(sink, {"n": 7}).sink == Sink(format="json", path="/7")
    assert resolve(Vertex(id=VertexId("c"), sql="SELECT ${n}"), {"n": 7}).sql == "SELECT 7"


@given(st.text(alphabet="a$${}b "), st.dictionaries(st.sampled_from(["a", "b"]), st.integers() | st.text("$${}")))
def test_substitution_gives_a_text_or_refuses(text: str, params: dict[str, int | str]) -> None:
    """Nothing else is raised (J4)."""
    with contextlib.suppress(InvalidParam):
        assert isinstance(substitute(text, params), str)
