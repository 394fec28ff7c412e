"""Reads streams of server-sent events, wherever the network cuts them (E16)."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from minflinkd.cli.event_stream import EventParser, ServerEvent

TEXT = (
    b'retry: 2000\n\nid: begun\n\nevent: job\ndata: {"a": 1}\n\n: nothing new\n\n'
    b"id: x.-2\nevent: sample\ndata: 1\ndata: 2\n\ndata: bare\n\nid: x.-3\n\n"
)
EVENTS = [ServerEvent("job", b'{"a": 1}'), ServerEvent("sample", b"1\n2"), ServerEvent("message", b"bare")]


@given(st.lists(st.integers(0, len(TEXT)), max_size=20))
def test_the_events_are_the_same_wherever_the_text_is_cut(cuts: list[int]) -> None:
    parser, found = EventParser(), list[ServerEvent]()
    edges = [0, *sorted(cuts), len(TEXT)]
    for start, end in itertools.pairwise(edges):
        found += parser.fed(TEXT[start:end])
    assert found == EVENTS
    assert parser.last_id == "x.-3"


def test_a_part_of_an_event_is_forgotten_with_its_connection() -> None:
    """And its id was never given: it comes again."""
    parser = EventParser()
    assert list(parser.fed(b"id: x.-1\ndata: one\n\nid: x.-2\ndata: tw")) == [ServerEvent("message", b"one")]
    parser.broke_off()
    assert parser.last_id == "x.-1"
    assert list(parser.fed(b"id: x.-2\ndata: two\n\n")) == [ServerEvent("message", b"two")]
