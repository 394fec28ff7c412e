"""Which rows a commit merges into a table by key (K4)."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest

from minflinkd.jobgraph.changes import ChangeColumns
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.taskmanager.session.sinks.held import StagedRowsGone
from minflinkd.taskmanager.session.sinks.tables.commits import Look
from minflinkd.taskmanager.session.sinks.tables.failures import TableChanged
from minflinkd.taskmanager.session.sinks.tables.keyed_changes import KeyedChanges, last_by_key
from minflinkd.taskmanager.session.sinks.tables.staged import DataFile, Staged
from minflinkd.taskmanager.session.sinks.tables.upserts import TableUpserts

JOB, SINK = JobId("1" * 32), VertexId("out")
BY_K = ChangeColumns(key=("k",))


def rows(*values: tuple[str, int]) -> pa.Table:
    return pa.table({"k": [key for key, _ in values], "n": pa.array([n for _, n in values], pa.int64())})


def test_the_last_row_of_each_key_counts() -> None:
    """Keys may have several columns, of any type that has an order."""
    found = last_by_key(rows(("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5)), ["k"])
    assert found.to_pylist() == [{"k": "a", "n": 3}, {"k": "c", "n": 4}, {"k": "b", "n": 5}]
    noon = datetime(2026, 11, 28, 12, tzinfo=UTC)
    table = pa.table({"at": [noon, noon, noon], "price": [Decimal(1), Decimal(2), Decimal(1)], "many": [[1], [2], [3]]})
    assert last_by_key(table, ["at", "price"]).column("many").to_pylist() == [[2], [3]]
    assert last_by_key(rows(), ["k"]).num_rows == 0


class Keyed:
    """A table in memory."""

    name = "the table"

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.mark: int | None = None
        self.merges = 0

    def look(self, owner: str) -> Look:
        return Look(self.mark, self)

    def lay_out(self, rows: Any) -> Any:
        raise NotImplementedError

    def merge(self, look: Look, owner: str, number: int, checkpoint_id: int, changes: KeyedChanges) -> None:
        self.rows |= {row["k"]: row["n"] for row in changes.rows.to_pylist()}
        for row in changes.gone.to_pylist():
            assert list(row) == ["k"]
            self.rows.pop(row["k"], None)
        self.mark = number
        self.merges += 1


def staged(directory: Path, number: int, *values: tuple[str, int], gone: str = "") -> Any:
    """Return the token of a micro-batch with rows, and with the keys that are in `gone`."""
    directory.mkdir(parents=True, exist_ok=True)
    files = list[DataFile]()
    if values:
        pyarrow.parquet.write_table(rows(*values), directory / f"{number}.parquet")
        files.append(DataFile(f"{number}.parquet", 1, len(values)))
    if gone:
        pyarrow.parquet.write_table(pa.table({"k": list(gone)}), directory / f"{number}-gone.parquet")
        files.append(DataFile(f"{number}-gone.parquet", 1, len(gone), gone=True))
    return msgspec.to_builtins(Staged(job=JOB, table="the table", number=number, files=tuple(files)))


def test_micro_batches_of_a_checkpoint_are_merged_at_once_in_their_order(tmp_path: Path) -> None:
    """A repeated commit merges nothing: a later row with the key may be there by then. Files go when merged."""
    table, own = Keyed(), tmp_path / "sinks" / SINK
    tokens = [staged(own, 1, ("a", 1), ("b", 1)), staged(own, 2, ("a", 2))]
    sink = TableUpserts(table, BY_K, JOB, SINK, str(tmp_path))
    sink.commit(7, tokens)
    assert (table.rows, table.merges, list(own.iterdir())) == ({"a": 2, "b": 1}, 1, [])
    table.rows["a"] = 9
    sink.commit(7, tokens)
    assert (table.rows["a"], table.merges) == (9, 1)


def test_the_last_change_of_a_key_says_whether_it_is_there(tmp_path: Path) -> None:
    """A row may go, and come again, within a checkpoint; a checkpoint may have nothing but keys that go (K6)."""
    table, own = Keyed(), tmp_path / "sinks" / SINK
    sink = TableUpserts(table, BY_K, JOB, SINK, str(tmp_path))
    sink.commit(1, [staged(own, 1, ("a", 1), ("b", 1), ("c", 1))])
    tokens = [staged(own, 2, ("d", 2), gone="ab"), staged(own, 3, ("a", 3), gone="d"), staged(own, 4, gone="cx")]
    sink.commit(2, tokens)
    assert (table.rows, table.merges, list(own.iterdir())) == ({"a": 3}, 2, [])
    sink.commit(3, [staged(own, 5, gone="a")])
    assert (table.rows, table.mark) == ({}, 5)


def test_rows_that_wait_to_be_deleted_have_the_key_of_then(tmp_path: Path) -> None:
    """Nobody can tell which rows are meant by another key. The error says how to go on (K6)."""
    table, own = Keyed(), tmp_path / "sinks" / SINK
    by_n = ChangeColumns(key=("n",))
    sink = TableUpserts(table, by_n, JOB, SINK, str(tmp_path))
    with pytest.raises(TableChanged, match="known by k, but the key is n now"):
        sink.commit(1, [staged(own, 1, ("a", 1), gone="b")])
    assert table.mark is None


def test_a_column_may_become_wider_between_micro_batches_of_a_checkpoint(tmp_path: Path) -> None:
    """Rows that were staged before are merged with those after."""
    table, own = Keyed(), tmp_path / "sinks" / SINK
    tokens = [staged(own, 1, ("a", 1), ("b", 1)), staged(own, 2, ("a", 2**40))]
    narrow = pyarrow.parquet.read_table(own / "1.parquet").cast(pa.schema([("k", pa.string()), ("n", pa.int32())]))
    pyarrow.parquet.write_table(narrow, own / "1.parquet")
    TableUpserts(table, BY_K, JOB, SINK, str(tmp_path)).commit(7, tokens)
    assert table.rows == {"a": 2**40, "b": 1}


def test_rows_of_a_restored_checkpoint_are_found_there(tmp_path: Path) -> None:
    """They are in the snapshot. After the restore nothing of them is left."""
    table, restored = Keyed(), tmp_path / "checkpoint" / "sinks" / SINK
    sink = TableUpserts(table, BY_K, JOB, SINK, str(tmp_path))
    token = staged(restored, 1, ("a", 1))
    assert sink.files(token) == (f"sinks/{SINK}/1.parquet",)
    sink.commit(7, [token])
    sink.abort(None)
    assert (table.rows, restored.exists()) == ({"a": 1}, False)


def test_rows_that_are_gone_before_they_are_merged_are_told(tmp_path: Path) -> None:
    table, own = Keyed(), tmp_path / "sinks" / SINK
    tokens = [staged(own, 1, ("a", 1)), staged(own, 2, ("a", 2))]
    (own / "1.parquet").unlink()
    with pytest.raises(StagedRowsGone, match=r"a checkpoint covers the rows in 1\.parquet"):
        TableUpserts(table, BY_K, JOB, SINK, str(tmp_path)).commit(7, tokens)
    assert (table.rows, table.merges) == ({}, 0)
