"""The exchange log on a real disk: entries appear whole and in order, and are deleted when no reader needs them."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from minflinkd.taskmanager.exchange.log import (
    BEGIN,
    DATA,
    ENTRIES,
    ENTRY_COST,
    DataFile,
    Entry,
    EntryKind,
    ExchangeDamaged,
    LogReader,
    LogWriter,
    begin_reading,
    covered,
    entry_path,
    mark_consumed,
    mark_covered,
    place,
    read_entry,
    read_schema,
)


def data(directory: Path, name: str, content: bytes = b"0123456789") -> Entry:
    """Return a data entry whose file exists."""
    (directory / DATA / name).write_bytes(content)
    return Entry(kind=EntryKind.DATA, files=(DataFile(name, 1, len(content)),))


def test_entries_are_numbered_without_gaps_from_where_a_snapshot_left_them(tmp_path: Path) -> None:
    """J8, J9."""
    log = LogWriter(tmp_path, (), first=7)
    barrier = Entry(kind=EntryKind.BARRIER, checkpoint_id=3)
    assert [log.append(data(tmp_path, "a")), log.append(barrier)] == [7, 8]
    assert list(LogReader(tmp_path, 7).read())[1] == (8, barrier)
    assert read_entry(tmp_path, 6) is None


def test_a_reader_gets_every_entry_once(tmp_path: Path) -> None:
    """J8."""
    log, reader = LogWriter(tmp_path, ("r",)), LogReader(tmp_path, 0)
    log.append(Entry(kind=EntryKind.WATERMARK, watermark_ms=1))
    assert [n for n, _ in reader.read()] == [0]
    assert list(reader.read()) == []
    log.append(Entry(kind=EntryKind.END))
    assert [n for n, _ in reader.read()] == [1]


def test_entries_appear_whole_while_somebody_reads(tmp_path: Path) -> None:
    """An entry appears after all of its data, and never in part (J8)."""
    count, read, failures = 300, list[int](), list[BaseException]()
    log = LogWriter(tmp_path, ("r",))

    def follow() -> None:
        reader = LogReader(tmp_path, 0)
        try:
            while len(read) < count:
                for sequence, entry in reader.read():
                    (file,) = entry.files
                    assert (tmp_path / DATA / file.name).stat().st_size == file.size
                    read.append(sequence)
                    mark_consumed(tmp_path, "r", sequence + 1)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(count):
        log.append(data(tmp_path, f"f{number}", b"x" * (number * 37 % 5000)))
        log.backlog()
    thread.join(60)
    assert failures == []
    assert read == list(range(count))
    assert log.backlog() == 0
    assert list((tmp_path / ENTRIES).iterdir()) == list((tmp_path / DATA).iterdir()) == []


def test_an_entry_is_kept_until_all_readers_have_consumed_it(tmp_path: Path) -> None:
    """J10."""
    log = LogWriter(tmp_path, ("a", "b"))
    for name in ("x", "y"):
        log.append(data(tmp_path, name))
    assert log.backlog() == 20
    mark_consumed(tmp_path, "a", 2)
    assert log.backlog() == 20, "the other one has not said anything"
    mark_consumed(tmp_path, "b", 1)
    assert log.backlog() == 10
    assert not (tmp_path / DATA / "x").exists()
    assert (tmp_path / DATA / "y").exists()
    mark_consumed(tmp_path, "b", 2)
    assert log.backlog() == 0


def test_the_backlog_is_that_of_the_slowest_reader(tmp_path: Path) -> None:
    """Barriers and watermarks count no bytes (J10)."""
    log = LogWriter(tmp_path, ("a",))
    log.append(data(tmp_path, "x", b"x" * 100))
    log.append(Entry(kind=EntryKind.BARRIER, checkpoint_id=1))
    log.append(data(tmp_path, "y", b"y" * 50))
    mark_consumed(tmp_path, "a", 1)
    assert log.backlog() == 50


def test_what_cannot_be_read_is_damage_and_not_absence(tmp_path: Path) -> None:
    """The tasks restart from a checkpoint, and nothing is skipped (J9)."""
    log = LogWriter(tmp_path, ())
    log.append(Entry(kind=EntryKind.END))
    entry_path(tmp_path, 0).write_bytes(b'{"kind": "da')
    with pytest.raises(ExchangeDamaged, match="entry 0"):
        list(LogReader(tmp_path, 0).read())


def test_the_schema_says_that_the_exchange_is_open(tmp_path: Path) -> None:
    """J8."""
    log = LogWriter(tmp_path, ())
    assert read_schema(tmp_path) is None
    log.describe('{"type": "struct"}')
    assert read_schema(tmp_path) == '{"type": "struct"}'


def test_to_consume_a_log_that_is_gone_harms_nothing(tmp_path: Path) -> None:
    """A stopped query may go on for a moment (C10a)."""
    mark_consumed(tmp_path / "gone", "a", 1)
    assert not (tmp_path / "gone").exists()


# --- readers that restart --------------------------------------------------------------------------------------------


def kept(log: LogWriter) -> list[int]:
    return sorted(int(path.name) for path in (log.directory / ENTRIES).iterdir())


def written(directory: Path, *names: str, replay: int) -> LogWriter:
    """Return a log with one entry of 10 bytes for each name."""
    log = LogWriter(directory, ("r",), replay=replay)
    for name in names:
        log.append(data(directory, name))
    return log


def test_what_was_consumed_is_kept_until_a_checkpoint_covers_it(tmp_path: Path) -> None:
    """It counts as no backlog meanwhile, so it holds nobody back (R16)."""
    log = written(tmp_path, "x", "y", "z", replay=1 << 30)
    mark_consumed(tmp_path, "r", 3)
    assert (log.backlog(), kept(log), log.replayable) == (0, [0, 1, 2], True)
    mark_covered(tmp_path, "r", 2)
    assert (log.backlog(), kept(log), log.replayable) == (0, [2], True)
    begin_reading(tmp_path, "r", 2)
    assert [sequence for sequence, _ in LogReader(tmp_path, 2).read()] == [2]


def test_what_a_reader_will_read_again_counts_as_backlog_again(tmp_path: Path) -> None:
    """It is not deleted, even if it is more than is kept for readers that restart (R16)."""
    log = written(tmp_path, "x", "y", "z", replay=1 << 30)
    mark_consumed(tmp_path, "r", 3)
    log.backlog()
    begin_reading(tmp_path, "r", 1)
    log.drop_consumed()
    assert (log.backlog(), kept(log)) == (20, [1, 2])


def test_only_so_much_is_kept_and_then_readers_cannot_restart_alone(tmp_path: Path) -> None:
    """The oldest entries go first. A reader that needs them finds that out when it begins (R16)."""
    log = written(tmp_path, "x", "y", "z", replay=2 * (ENTRY_COST + 10))
    mark_consumed(tmp_path, "r", 3)
    assert (log.backlog(), kept(log), log.replayable) == (0, [1, 2], False)
    with pytest.raises(ExchangeDamaged, match="from entry 0 on, and it begins at 1"):
        begin_reading(tmp_path, "r", 0)
    mark_covered(tmp_path, "r", 1)
    log.backlog()
    assert log.replayable, "the next checkpoint covers what is gone"


def test_on_a_full_disk_nothing_is_kept_that_was_consumed(tmp_path: Path) -> None:
    log = written(tmp_path, "x", "y", replay=1 << 30)
    mark_consumed(tmp_path, "r", 1)
    log.drop_consumed()
    assert (kept(log), log.replayable) == ([1], False)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_reader_that_begins_while_entries_are_deleted_has_them_or_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It never waits for an entry that will not come (R16). The reader begins next to the writing of `begin`."""
    log = written(tmp_path, "x", "y", replay=0)
    mark_consumed(tmp_path, "r", 2)
    told = list[str]()
    placed = place

    def placing(path: Path, content: bytes) -> None:
        if path.name != BEGIN:
            return placed(path, content)
        if moment == "after":
            placed(path, content)
        try:
            begin_reading(tmp_path, "r", 0)
        except ExchangeDamaged as error:
            told.append(str(error))
        if moment == "before":
            placed(path, content)
        return None

    monkeypatch.setattr("minflinkd.taskmanager.exchange.log.place", placing)
    log.drop_consumed()
    assert bool(told) == (moment == "after")
    assert kept(log) == [0, 1]


def test_on_a_disk_without_room_what_is_covered_is_deleted_and_the_rest_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting must not need room. What a reader may ask for stays: nobody could tell it that this is gone."""
    log = written(tmp_path, "x", "y", "z", replay=0)
    mark_covered(tmp_path, "r", 1)
    mark_consumed(tmp_path, "r", 3)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("minflinkd.taskmanager.exchange.log.place", full)
        assert (log.backlog(), kept(log), log.replayable) == (0, [1, 2], True)
        mark_covered(tmp_path, "r", 2)  # nothing is noted, and nothing fails
    assert covered(tmp_path, "r") == 1
    log.backlog()
    assert (kept(log), log.replayable) == ([], False)
