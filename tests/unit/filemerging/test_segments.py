from hypothesis import given
from hypothesis import strategies as st

from minflinkd.filemerging.segments import checksum, physical_file_name, plan_reads
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.runtime.ids import AttemptId, ResourceId


def handle(file: str, offset: int, length: int) -> StateHandle:
    return StateHandle(file, offset, length, "c")


def test_a_physical_file_is_named_for_who_wrote_it_and_when() -> None:
    """The leader's epoch is part of the name (F5)."""
    name = physical_file_name(3, 17, AttemptId("a" * 32), ResourceId("tm-00"), 1)
    assert name == f"3-000000017-tm-00-{'a' * 32}-001.seg"


def test_neighbours_are_read_together() -> None:
    """F1"""
    wanted = {"c": handle("f", 30, 5), "a": handle("f", 8, 12), "b": handle("f", 20, 10), "z": handle("g", 8, 1)}
    reads = plan_reads(wanted)
    assert [(read.file, read.offset, read.length) for read in reads] == [("f", 8, 27), ("g", 8, 1)]
    assert [segment.paths for segment in reads[0].segments] == [("a",), ("b",), ("c",)]


def test_a_small_gap_is_read_over_and_a_large_one_is_not() -> None:
    wanted = {"a": handle("f", 8, 10), "b": handle("f", 28, 10), "c": handle("f", 1000, 10)}
    assert [(read.offset, read.length) for read in plan_reads(wanted, max_gap=10)] == [(8, 30), (1000, 10)]


def test_a_large_file_is_read_by_several_requests() -> None:
    wanted = {str(number): handle("f", 8 + 10 * number, 10) for number in range(10)}
    assert [read.length for read in plan_reads(wanted, max_length=35)] == [30, 30, 30, 10]


def test_one_segment_may_become_several_files() -> None:
    wanted = {"a": handle("f", 8, 10), "b": handle("f", 8, 10)}
    (read,) = plan_reads(wanted)
    assert [segment.paths for segment in read.segments] == [("a", "b")]


def test_empty_segments_are_not_read() -> None:
    assert plan_reads({"a": handle("f", 8, 0)}) == []


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=4),
        st.builds(handle, st.sampled_from("fg"), st.integers(0, 60), st.integers(0, 20)),
    ),
    st.integers(0, 10),
    st.integers(1, 50),
)
def test_every_segment_is_read_once_within_its_request(
    wanted: dict[str, StateHandle], max_gap: int, max_length: int
) -> None:
    reads = plan_reads(wanted, max_gap=max_gap, max_length=max_length)
    found = {path: segment.handle for read in reads for segment in read.segments for path in segment.paths}
    assert found == {path: one for path, one in wanted.items() if one.length}
    assert sum(len(segment.paths) for read in reads for segment in read.segments) == len(found)
    for read in reads:
        position = read.offset
        for segment in read.segments:
            assert segment.handle.file == read.file
            assert position <= segment.handle.offset <= position + max_gap
            position = segment.handle.offset + segment.handle.length
        assert position == read.offset + read.length
        assert read.length <= max_length or len(read.segments) == 1


def test_the_checksum_is_xxh3_128() -> None:
    assert checksum(b"") == "99aa06d3014798d86001c324468d497f"
