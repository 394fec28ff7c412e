"""Iceberg tables whose small files are joined, beside other writers (K5)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from msgspec.structs import replace
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, parse_transform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from minflinkd.jobgraph.model import Compaction, Sink
from minflinkd.runtime.units import Duration, MemorySize
from minflinkd.taskmanager.session.sinks.compaction import iceberg, iceberg_expiry
from minflinkd.taskmanager.session.sinks.compaction.__main__ import carried_out
from minflinkd.taskmanager.session.sinks.compaction.iceberg_expiry import replaced_before
from minflinkd.taskmanager.session.sinks.compaction.messages import Answer, Joined, Request
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict
from minflinkd.taskmanager.session.sinks.tables.iceberg import IcebergTarget
from minflinkd.taskmanager.session.sinks.tables.keyed_changes import KeyedChanges
from minflinkd.taskmanager.session.sinks.tables.targets import table_of
from tests.lakes import Iceberg

OWNER = "minflinkd.11111111111111111111111111111111.out"
WANTED = Compaction(target=MemorySize(1 << 20))
COLUMNS = Schema(
    NestedField(1, "value", LongType(), required=False),
    NestedField(2, "text", StringType(), required=False),
    NestedField(3, "day", DateType(), required=False),
    NestedField(4, "even", BooleanType(), required=False),
)
ARROW = COLUMNS.as_arrow()
PARTITIONS = {
    "no partitions": (),
    "by a text": ("text",),
    "by a date": ("day",),
    "by a boolean and a text": ("even", "text"),
}
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)


def row(number: int) -> dict[str, Any]:
    """Some columns are NULL, and a text has what a filter or a path must not take for its own."""
    return {
        "value": number,
        "text": [None, "a'b", "ä/x y"][number % 3],
        "day": [None, date(2026, 11, 28), date(1969, 12, 31)][number % 3],
        "even": None if number % 5 == 0 else number % 2 == 0,
    }


def rows(*numbers: int) -> pa.Table:
    return pa.Table.from_pylist([row(number) for number in numbers], schema=ARROW)


class World:
    """One table."""

    def __init__(self, directory: Path, by: tuple[str, ...] = ()) -> None:
        self.lake = Iceberg(directory)
        fields = [
            PartitionField(COLUMNS.find_field(name).field_id, 1000 + n, parse_transform("identity"), f"p{n}")
            for n, name in enumerate(by)
        ]
        order = SortOrder(SortField(1, IdentityTransform()), order_id=1)
        catalog = self.lake.catalog()
        catalog.create_namespace("db")
        catalog.create_table("db.rows", COLUMNS, partition_spec=PartitionSpec(*fields), sort_order=order)

    @property
    def sink(self) -> Sink:
        return replace(self.lake.sink("rows"), compaction=WANTED)

    def table(self) -> Any:
        return self.lake.table("rows")

    def append(self, *numbers: int) -> None:
        self.table().append(rows(*numbers))

    def compacted(self, compaction: Compaction = WANTED) -> Answer:
        answer = carried_out(Request(replace(self.sink, compaction=compaction), OWNER))
        assert not answer.failure
        return answer

    def named(self) -> int:
        """Return how many files the table has, as readers see it."""
        return len(list(self.table().scan().plan_files()))

    def values(self) -> list[int]:
        found = self.lake.rows("rows")
        assert sorted(map(repr, found)) == sorted(repr(row(each["value"])) for each in found)
        return sorted(each["value"] for each in found)


@pytest.mark.parametrize("by", PARTITIONS.values(), ids=PARTITIONS)
def test_small_files_are_joined_partition_by_partition(tmp_path: Path, by: tuple[str, ...]) -> None:
    """Readers see the same rows, and a second run finds nothing to do (K5)."""
    world = World(tmp_path, by)
    for number in range(12):
        world.append(number, number + 100)
    many = world.named()
    answer = world.compacted()
    partitions = len({tuple(row(number)[name] for name in by) for n in range(12) for number in (n, n + 100)})
    assert (answer.joined.files, answer.joined.into) == (many, partitions)
    assert world.named() == partitions
    assert world.values() == sorted([*range(12), *range(100, 112)])
    assert world.compacted() == Answer()


def test_a_compaction_is_no_change_of_data(tmp_path: Path) -> None:
    """Its snapshot says `replace`, with the right totals; marks of sinks and the order of rows stay (K5)."""
    world = World(tmp_path)
    world.append(5, 1)
    world.append(3)
    with world.table().transaction() as transaction:
        transaction.set_properties({OWNER: "7"})
    world.compacted()
    table = world.table()
    summary = table.current_snapshot().summary
    assert summary.operation.value == "replace"
    assert (summary["total-records"], summary["total-data-files"]) == ("3", "1")
    assert summary["minflinkd.compaction"] == OWNER
    assert table.properties[OWNER] == "7"
    assert [each["value"] for each in world.lake.rows("rows")] == [1, 3, 5]


def test_files_of_another_writer_that_come_meanwhile_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compaction goes on beside commits that append (K5)."""
    world = World(tmp_path)
    for number in range(4):
        world.append(number)
    meanwhile(monkeypatch, lambda: world.append(50))
    answer = world.compacted()
    assert (answer.joined.files, answer.joined.into, answer.joined.overtaken) == (4, 1, 0)
    assert world.named() == 2
    assert world.values() == [0, 1, 2, 3, 50]


def test_a_compaction_whose_files_were_rewritten_meanwhile_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise rows that were replaced would come back. It leaves no data file behind (K5)."""
    world = World(tmp_path)
    for number in range(4):
        world.append(number)
    target = table_of(world.lake.sink("rows", key="value"))
    replaced = pa.Table.from_pylist([row(2) | {"text": "new"}], schema=ARROW)
    meanwhile(
        monkeypatch, lambda: target.merge(target.look(OWNER), OWNER, 1, 1, KeyedChanges.of_rows(replaced, target.key))
    )
    before = world.lake.data_files("rows")
    answer = world.compacted()
    assert (answer.joined.files, answer.joined.overtaken) == (0, 1)
    found = {each["value"]: each["text"] for each in world.lake.rows("rows")}
    assert found == {0: None, 1: "a'b", 2: "new", 3: None}
    assert len(world.lake.data_files("rows") - before) == 1  # of the merge
    assert world.compacted().joined.into == 1


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Do something, once, between what a compaction reads and what it commits."""
    todo = [action]

    def first(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **named: Any) -> Any:
            while todo:
                todo.pop()()
            return original(*given, **named)

        return wrapped

    monkeypatch.setattr(iceberg, "_committed", first(iceberg._committed))


@pytest.mark.parametrize("changed", [False, True], ids=["nothing else", "a joined file was rewritten since"])
def test_a_commit_whose_answer_was_lost_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool) -> None:
    """A catalog's client asks twice, and is told that another commit came first: its own. Its files stay (K5)."""
    world = World(tmp_path, ("text",))
    for number in range(6):
        world.append(number)
    target = table_of(world.lake.sink("rows", key="value"))
    commit, calls = SqlCatalog.commit_table, [0]

    def twice(self: Any, *given: Any) -> Any:
        calls[0] += 1
        first = calls[0] == 1
        answer = commit(self, *given)
        if first and changed:
            target.merge(target.look(OWNER), OWNER, 1, 1, KeyedChanges.of_rows(rows(3), target.key))
        return commit(self, *given) if first else answer

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", twice)
        joined = world.compacted().joined
    assert (joined.files, joined.into, joined.overtaken) == (6, 3, 0)
    assert world.values() == list(range(6))


def test_a_commit_of_which_nothing_is_known_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table may name them (K5)."""
    world = World(tmp_path)
    world.append(1)
    world.append(2)
    commit = SqlCatalog.commit_table

    def lost(self: Any, *given: Any) -> Any:
        commit(self, *given)
        raise ConnectionError("the answer is lost")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", lost)
        answer = carried_out(Request(world.sink, OWNER))
    assert "the answer is lost" in answer.failure
    assert world.values() == [1, 2]
    assert world.named() == 1


@pytest.mark.parametrize("what", ["columns", "partitions", "deletes", "another table"])
def test_a_table_that_is_another_by_then_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Files that were written for it would lack a column or deletes, or be in wrong partitions (K5)."""
    world = World(tmp_path)
    for number in range(3):
        world.append(number)

    def change() -> None:
        table = world.table()
        if what == "columns":
            with table.update_schema() as schema:
                schema.add_column("more", LongType())
        elif what == "partitions":
            with table.update_spec() as spec:
                spec.add_identity("day")
        elif what == "another table":
            world.lake.catalog().drop_table("db.rows")
            world.lake.catalog().create_table("db.rows", COLUMNS)
        else:
            monkeypatch.setattr(iceberg, "_has_deletes", lambda table: True)
        world.append(7)

    before = world.lake.data_files("rows")
    meanwhile(monkeypatch, change)
    assert world.compacted().joined == Joined(overtaken=1)
    assert sorted(each["value"] for each in world.lake.rows("rows")) == (
        [7] if what == "another table" else [0, 1, 2, 7]
    )
    assert len(world.lake.data_files("rows") - before) == 1


class OfDeletes:
    """Stands for a manifest of delete files, which the library does not write."""

    content = ManifestContent.DELETES

    def has_added_files(self) -> bool:
        return True


TRANSFORMS = {"value": "bucket[3]", "text": "truncate[1]", "day": "month", "at": "hour", "price": "identity"}


@pytest.mark.parametrize("column", TRANSFORMS)
def test_files_of_any_partition_are_joined(tmp_path: Path, column: str) -> None:
    """The library finds the partition of each row again (K5)."""
    schema = Schema(
        *COLUMNS.fields,
        NestedField(5, "at", TimestamptzType(), required=False),
        NestedField(6, "price", DecimalType(10, 2), required=False),
    )
    lake = Iceberg(tmp_path)
    number = schema.find_field(column).field_id
    spec = PartitionSpec(PartitionField(number, 1000, parse_transform(TRANSFORMS[column]), "p"))
    lake.catalog().create_namespace("db")
    table = lake.catalog().create_table("db.rows", schema, partition_spec=spec)
    wanted = []
    for n in range(9):
        more = {"at": None if n % 4 == 0 else NOON + timedelta(minutes=40 * (n % 3)), "price": Decimal(n % 3 - 1) / 4}
        wanted.append(row(n) | more)
        table.append(pa.Table.from_pylist(wanted[-1:], schema=schema.as_arrow()))
    before = len(list(table.scan().plan_files()))
    answer = carried_out(Request(replace(lake.sink("rows"), compaction=WANTED), OWNER))
    assert not answer.failure
    after = list(lake.table("rows").scan().plan_files())
    assert before == answer.joined.files - answer.joined.into + len(after)
    assert len({str(task.file.partition) for task in after}) == len(after)
    key = "value"
    found = sorted(lake.rows("rows"), key=lambda each: each[key])
    assert found == [each | {"price": each["price"].quantize(Decimal("0.01"))} for each in wanted]


def test_rows_are_counted_before_files_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would look for rows that a commit without changes has lost (K5)."""
    world = World(tmp_path)
    world.append(1, 2)
    world.append(3)
    in_order = iceberg.in_order
    monkeypatch.setattr(iceberg, "in_order", lambda table, found: in_order(table, found).slice(1))
    answer = carried_out(Request(world.sink, OWNER))
    assert "files with 3 rows were joined to files with 2, and are left as they are" in answer.failure
    assert world.values() == [1, 2, 3]
    assert len(world.lake.data_files("rows")) == 2


def test_a_snapshot_is_old_when_another_one_replaced_it_long_ago(tmp_path: Path) -> None:
    """Not when it is old itself: a query may just have begun on the one before the last (K5)."""
    world = World(tmp_path)
    for number in range(4):
        world.append(number)
    table = world.table()
    times = [entry.timestamp_ms for entry in table.history()]
    numbers = [entry.snapshot_id for entry in table.history()]

    def old(moment: float) -> list[int]:
        return [snapshot.snapshot_id for snapshot in replaced_before(table, moment)]

    assert old(times[0] + 1) == []
    assert old(times[2] + 0.5) == numbers[:2]
    assert old(times[3] + 1e6) == numbers[:3]


def test_a_snapshot_that_gets_a_name_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run looks again (K5)."""
    world = World(tmp_path)
    world.append(0)
    first = world.table().current_snapshot().snapshot_id
    world.append(1)
    dropped = iceberg_expiry._dropped

    def tagged(table: Any, snapshots: Any) -> bool:
        world.table().manage_snapshots().rollback_to_snapshot(first).commit()
        return dropped(table, snapshots)

    monkeypatch.setattr(iceberg_expiry, "_dropped", tagged)
    expiring = Compaction(target=WANTED.target, expire=Duration(0.0))
    target = table_of(world.sink)
    assert isinstance(target, IcebergTarget)
    assert iceberg_expiry.expire(target, expiring) == 0
    assert world.values() == [0]


def test_files_that_belong_to_another_table_are_not_deleted(tmp_path: Path) -> None:
    """`gc.enabled=false` says so (K5)."""
    world = World(tmp_path)
    world.append(0)
    with world.table().transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    answer = carried_out(Request(replace(world.sink, compaction=Compaction(expire=Duration(0.0))), OWNER))
    assert "has gc.enabled=false" in answer.failure


@pytest.mark.parametrize("by", [(), ("text",)], ids=["no partitions", "by a text"])
def test_what_only_old_versions_have_is_deleted_when_asked(tmp_path: Path, by: tuple[str, ...]) -> None:
    """Rows that wait for their checkpoint are in files that no version has; these stay (K5)."""
    world = World(tmp_path, by)
    for number in range(0, 12, 3):  # of one partition
        world.append(number)
    waiting = Path(next(iter(world.lake.data_files("rows")))).parent / "part-waiting.parquet"
    waiting.write_bytes(b"rows")
    assert world.compacted().deleted == 0
    assert len(world.lake.data_files("rows")) == 4 + 1 + 1
    expiring = Compaction(target=WANTED.target, expire=Duration(0.0))  # a job file may not ask for that
    assert world.compacted(expiring).deleted >= 4
    assert len(world.lake.data_files("rows")) == 1 + 1
    assert waiting.exists()
    assert world.values() == [0, 3, 6, 9]
    assert len(list((tmp_path / "db/rows/metadata").glob("snap-*"))) == 1
    assert world.compacted(expiring) == Answer()


def test_snapshots_with_a_name_and_their_files_are_kept(tmp_path: Path) -> None:
    """Somebody has tagged them to come back to them (K5)."""
    world = World(tmp_path)
    world.append(0)
    table = world.table()
    tagged = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_tag(tagged, "audit").commit()
    world.append(1)
    world.append(2)
    world.compacted(Compaction(target=WANTED.target, expire=Duration(0.0)))
    assert world.values() == [0, 1, 2]
    table = world.table()
    assert table.scan(snapshot_id=tagged).to_arrow().column("value").to_pylist() == [0]


def test_tables_with_deleted_rows_are_not_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other engines mark as deleted beside the files would come back (K5)."""
    world = World(tmp_path)
    world.append(1)
    world.append(2)
    manifests = Snapshot.manifests
    monkeypatch.setattr(Snapshot, "manifests", lambda self, io: [*manifests(self, io), OfDeletes()])
    answer = carried_out(Request(world.sink, OWNER))
    assert "has delete files, and is not compacted" in answer.failure


def test_a_sink_commits_while_its_table_is_compacted(tmp_path: Path) -> None:
    """Each commit and each compaction is repeated or given up, and no row is lost or doubled (K5)."""
    world = World(tmp_path)
    world.append(0)
    over = threading.Event()
    answers: list[Answer] = []

    def compact() -> None:
        while not over.is_set():
            answers.append(world.compacted())

    thread = threading.Thread(target=compact)
    thread.start()
    target = table_of(world.lake.sink("rows", key="value"))
    for number in range(1, 25):
        for _ in range(100):
            try:
                target.merge(target.look(OWNER), OWNER, number, number, KeyedChanges.of_rows(rows(number), target.key))
            except Conflict:
                continue
            break
    over.set()
    thread.join()
    assert world.values() == list(range(25))
    assert sum(answer.joined.into for answer in answers) > 0


def test_of_two_compactions_that_meet_one_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that only seems dead may compact beside its successor (K5)."""
    world = World(tmp_path, ("text",))
    for number in range(9):
        world.append(number)
    other: list[Answer] = []
    meanwhile(monkeypatch, lambda: other.append(world.compacted()))
    answer = world.compacted()
    assert (answer.joined, other[0].joined) == (Joined(overtaken=1), Joined(files=9, into=3))
    assert world.values() == list(range(9))


def test_compactions_of_delta_that_meet_double_the_rows(tmp_path: Path) -> None:
    """This is why they are refused. If this fails, the library looks: allow them, with the tests above (K5)."""
    for number in range(3):
        write_deltalake(str(tmp_path), rows(number), mode="append")
    tables = [DeltaTable(str(tmp_path)) for _ in range(2)]
    for table in tables:
        table.optimize.compact(commit_properties=CommitProperties(max_commit_retries=0))
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().column("value").to_pylist()
    assert sorted(found) == [0, 0, 1, 1, 2, 2]
