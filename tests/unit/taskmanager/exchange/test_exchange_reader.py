"""How far the reading end goes, as Spark asks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest

from minflinkd.taskmanager.exchange.log import DATA, DataFile, Entry, EntryKind, LogWriter, entry_path
from minflinkd.taskmanager.session.exchange_sink import arrow_writer
from minflinkd.taskmanager.session.exchange_source import ExchangeReader

Make = Callable[..., ExchangeReader]


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "log", ("task",))


@pytest.fixture
def reader(tmp_path: Path) -> Make:
    control = tmp_path / "control"
    (control / "released").mkdir(parents=True)

    def make(**options: str) -> ExchangeReader:
        values = {"position": "0", "first": "0", "hold": "true", "partitions": "2"} | options
        return ExchangeReader({"directory": str(tmp_path / "log"), "control": str(control), **values})

    return make


def data(log: LogWriter, *values: int) -> int:
    """An entry as the writing end makes it."""
    batch = pyarrow.RecordBatch.from_pydict({"value": list(values)})
    (written,) = arrow_writer(str(log.directory / DATA))([batch])
    (row,) = written.to_pylist()
    return log.append(Entry(kind=EntryKind.DATA, files=(DataFile(row["name"], row["rows"], row["size"]),)))


def barrier(log: LogWriter, number: int) -> None:
    log.append(Entry(kind=EntryKind.BARRIER, checkpoint_id=number))


def end(reader: ExchangeReader, start: int = 0) -> int:
    return reader.latestOffset({"position": start}, None)["position"]


def release(tmp_path: Path, number: int) -> None:
    (tmp_path / "control" / "released" / str(number)).touch()


def test_it_holds_at_a_barrier_until_it_is_released(log: LogWriter, reader: Make, tmp_path: Path) -> None:
    """C2."""
    data(log, 1)
    barrier(log, 1)
    data(log, 2)
    assert end(reader()) == 1
    assert end(reader(), 1) == 1
    release(tmp_path, 1)
    assert end(reader(), 1) == 3


def test_it_never_holds_at_least_once(log: LogWriter, reader: Make) -> None:
    """C3."""
    data(log, 1)
    barrier(log, 1)
    data(log, 2)
    assert end(reader(hold="false")) == 3


def test_barriers_that_are_passed_cost_no_micro_batch(log: LogWriter, reader: Make, tmp_path: Path) -> None:
    """C2: an offset that moved would be one."""
    data(log, 1)
    for number in (1, 2):
        barrier(log, number)
        release(tmp_path, number)
    assert end(reader(), 1) == 1
    data(log, 2)
    assert end(reader(), 1) == 4


def test_it_does_not_pass_a_barrier_behind_one_that_is_released(log: LogWriter, reader: Make, tmp_path: Path) -> None:
    """C12: several checkpoints may be in flight."""
    barrier(log, 1)
    data(log, 1)
    barrier(log, 2)
    data(log, 2)
    release(tmp_path, 1)
    assert end(reader()) == 2


@pytest.mark.parametrize("kind", [EntryKind.WATERMARK, EntryKind.END])
def test_event_time_and_the_end_are_worth_a_micro_batch(log: LogWriter, reader: Make, kind: EntryKind) -> None:
    """J8a."""
    log.append(Entry(kind=kind, watermark_ms=1))
    assert end(reader()) == 1
    (partition,) = reader().partitions({"position": 0}, {"position": 1})
    assert list(reader().read(partition)) == []


def test_it_yields_what_was_written(log: LogWriter, reader: Make) -> None:
    """J8: by as many Spark tasks as there are partitions, at most."""
    for value in range(5):
        data(log, value, value + 10)
    partitions = reader().partitions({"position": 1}, {"position": 5})
    assert len(partitions) == 2
    rows = [row["value"] for part in partitions for batch in reader().read(part) for row in batch.to_pylist()]
    assert sorted(rows) == [1, 2, 3, 4, 11, 12, 13, 14]


def test_restored_entries_are_read_from_where_they_were_laid_out(reader: Make, tmp_path: Path) -> None:
    """C5: and a barrier among them, which nobody releases any more, holds nothing."""
    restored = LogWriter(tmp_path / "control" / "restored", (), first=3)
    barrier(restored, 6)
    data(restored, 1)
    log = LogWriter(tmp_path / "log", (), first=5)
    data(log, 2)
    barrier(log, 7)
    options = {"position": "3", "first": "5"}
    assert reader(**options).initialOffset() == {"position": 3}
    assert end(reader(**options), 3) == 6
    partitions = reader(**options).partitions({"position": 3}, {"position": 6})
    rows = [r["value"] for part in partitions for batch in reader().read(part) for r in batch.to_pylist()]
    assert sorted(rows) == [1, 2]


def test_an_entry_that_is_gone_is_an_error(log: LogWriter, reader: Make) -> None:
    """J9: nothing is skipped in silence."""
    data(log, 1)
    data(log, 2)
    entry_path(log.directory, 0).unlink()
    with pytest.raises(RuntimeError, match="entry 0 of an exchange is gone"):
        reader().partitions({"position": 0}, {"position": 2})


def test_empty_output_makes_no_file(log: LogWriter) -> None:
    """J8."""
    empty = pyarrow.RecordBatch.from_pydict({"value": pyarrow.array([], pyarrow.int64())})
    assert list(arrow_writer(str(log.directory / DATA))([empty])) == []
    assert list((log.directory / DATA).iterdir()) == []
