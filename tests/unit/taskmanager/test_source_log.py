"""The interval at which Spark expects compact entries in the log of a file source."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minflinkd.taskmanager.session.state.source_log import guessed, keep_intervals, with_interval
from tests.shortened import examples


def names(compact: Iterable[int], plain: Iterable[int]) -> set[str]:
    return {f"{n}.compact" for n in compact} | {str(n) for n in plain}


def of_spark(present: set[str], default: int) -> int:
    """Return the interval that Spark finds out when a query starts (CompactibleFileStreamLog.compactInterval)."""
    compact = sorted((int(name.partition(".")[0]) for name in present if name.endswith(".compact")), reverse=True)
    if len(compact) >= 2:
        return compact[0] - compact[1]
    return guessed(compact[0], default) if compact else default


def is_readable(present: set[str], default: int) -> bool:
    """Whether Spark finds all entries up to the last: from the last compact one that it expects."""
    interval = of_spark(present, default)
    last = max(int(name.partition(".")[0]) for name in present)
    first = (last + 1) // interval * interval - 1
    wanted = {str(n) for n in range(max(first, -1) + 1, last + 1)} | ({f"{first}.compact"} if first >= 0 else set())
    return wanted <= present


@pytest.mark.parametrize(
    ("last", "interval"), [(9, 10), (19, 20), (29, 10), (39, 10), (49, 10), (58, 59), (3, 4), (24, 25), (34, 35)]
)
def test_the_interval_that_spark_guesses_of_one_compact_entry(last: int, interval: int) -> None:
    """Of 19.compact it is 20, although that was written in intervals of 10."""
    assert guessed(last, 10) == interval


def test_a_log_in_intervals_of_20_is_read_in_intervals_of_20() -> None:
    """Spark would look for 49.compact (C11)."""
    snapshot = names([39], range(40, 53))
    assert not is_readable(snapshot, 10)
    found = with_interval(snapshot, 10)
    assert found - snapshot == {"19.compact"}
    assert is_readable(found, 10)


def test_a_log_that_spark_can_read_is_left_as_it_is() -> None:
    """From 19.compact on it may go on in intervals of 20."""
    assert with_interval(names([19], [20, 21]), 10) == names([19], [20, 21])
    assert with_interval(names([9, 19], [20]), 10) == names([9, 19], [20])
    assert with_interval(names([], range(8)), 10) == names([], range(8))


@settings(max_examples=examples(300))
@given(
    default=st.integers(2, 12),
    runs=st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=6),
)
def test_a_query_reads_what_the_queries_before_it_have_written(default: int, runs: list[tuple[int, bool]]) -> None:
    """Each starts from a snapshot, or in the directory, of the one before. It writes entries as Spark does (C11)."""
    present: set[str] = set()
    number = 0
    for count, from_snapshot in runs:
        if present and from_snapshot:
            compact = [int(name.partition(".")[0]) for name in present if name.endswith(".compact")]
            first = max(compact, default=-1)
            present = names([first] if compact else [], range(first + 1, number))
        present = with_interval(present, default)
        if present:
            assert is_readable(present, default)
        interval = of_spark(present, default)
        for _ in range(count):
            present.add(f"{number}.compact" if (number + 1) % interval == 0 else str(number))
            number += 1


def test_only_logs_of_files_are_changed(tmp_path: Path) -> None:
    """Other sources keep a file of another kind there."""
    lines = [json.dumps({"path": f"/in/{n}.json", "timestamp": n, "batchId": n}) for n in range(53)]
    for path in ("sources/0/39.compact", *(f"sources/0/{n}" for n in range(40, 53)), "sources/1/0"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("v1\n")
    (tmp_path / "sources/0/39.compact").write_text("\n".join(["v1", *lines[:40]]))
    keep_intervals(tmp_path, 10)
    assert (tmp_path / "sources/0/19.compact").read_text() == "\n".join(["v1", *lines[:20]])
    assert not [path for path in (tmp_path / "sources/0").iterdir() if path.name.startswith(".")]
    assert [path.name for path in (tmp_path / "sources/1").iterdir()] == ["0"]


def test_a_damaged_log_is_left_to_spark(tmp_path: Path) -> None:
    """Its error names the file that is damaged."""
    log = tmp_path / "sources" / "0"
    log.mkdir(parents=True)
    for text in ("", "v1\n{", 'v1\n{"path": "/in/1"}'):
        (log / "39.compact").write_text(text)
        for number in range(40, 53):
            (log / str(number)).write_text("v1\n")
        before = sorted(log.iterdir())
        keep_intervals(tmp_path, 10)
        assert sorted(log.iterdir()) == before


def test_the_checksum_of_an_earlier_entry_is_not_taken_for_that_of_the_new_one(tmp_path: Path) -> None:
    """Hadoop reads a local file with the checksum beside it, if there is one."""
    log = tmp_path / "sources" / "0"
    log.mkdir(parents=True)
    (log / "39.compact").write_text("v1")
    (log / "49").write_text("v1")
    (log / ".19.compact.crc").write_bytes(b"crc")
    keep_intervals(tmp_path, 10)
    assert sorted(path.name for path in log.iterdir()) == ["19.compact", "39.compact", "49"]
