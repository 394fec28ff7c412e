"""What a sink of a table commits, whatever the order of attempts, deaths and other writers (K2, K3)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.taskmanager.session.sinks.tables import commits as module
from minflinkd.taskmanager.session.sinks.tables.commits import Look
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict, TableChanged, TableFailed
from minflinkd.taskmanager.session.sinks.tables.rows import Layout, TableRows
from minflinkd.taskmanager.session.sinks.tables.staged import (
    SPEC,
    DataFile,
    Staged,
    changed,
    decoded,
    next_number,
    unpublished,
)

JOB, SINK = JobId("1" * 32), VertexId("out")


class Shared:
    """What is in the storage: files, those that commits name, and the marks. `version`: of the table."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.visible: list[str] = []
        self.marks: dict[str, int] = {}
        self.version = 0
        self.identity = "a"
        self.specs: list[str] = []


class OneTable:
    """The table as one attempt sees it. `before`: what others do between its look at the mark and its commit."""

    name = "the table"
    settings: dict[str, str] = {}

    def __init__(self, shared: Shared, before: Any = lambda: None, *, refuses: int = 0) -> None:
        self._shared, self._before, self._refuses = shared, before, refuses

    def look(self, owner: str) -> Look:
        return Look(self._shared.marks.get(owner), self._shared.version, {"the table itself": self._shared.identity})

    def commit(self, look: Look, owner: str, last: Staged, checkpoint_id: int, files: Sequence[DataFile]) -> None:
        self._before()
        if self._refuses or look.table != self._shared.version:
            self._refuses = max(0, self._refuses - 1)
            raise Conflict("somebody was faster")
        assert self._shared.files.issuperset(file.path for file in files)
        self._shared.visible += [file.path for file in files]
        self._shared.marks[owner] = last.number
        self._shared.specs.append(last.spec)
        self._shared.version += 1

    def has(self, look: Look, file: DataFile) -> bool:
        return file.path in self._shared.files

    def delete(self, look: Look, file: DataFile) -> None:
        assert file.path not in self._shared.visible
        self._shared.files.discard(file.path)

    def check(self, rows: Any) -> None:
        raise NotImplementedError

    def load(self) -> None:
        raise NotImplementedError

    def lay_out(self, rows: Any) -> Layout:
        raise NotImplementedError

    def add(self, layout: Layout, file: Any, name: str) -> DataFile:
        raise NotImplementedError


def sink_of(table: OneTable, job: JobId = JOB) -> TableRows:
    return TableRows(table, job, SINK, Path("waiting"))


def token(shared: Shared, number: int, *names: str, job: str = JOB, spec: str = "0") -> Any:
    shared.files.update(names)
    files = tuple(DataFile(name, 1, 1) for name in names)
    relies_on = {"the table itself": shared.identity, SPEC: spec}
    return msgspec.to_builtins(Staged(job=job, table="the table", number=number, files=files, relies_on=relies_on))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0)


def test_a_number_is_the_time_and_always_larger_than_the_last() -> None:
    """Also if the clock is late."""
    assert next_number(0, 1_800_000_000.5) == 1_800_000_000_500
    assert next_number(1_800_000_000_500, 1_800_000_000.5) == 1_800_000_000_501
    assert next_number(1_900_000_000_000, 1_800_000_000.5) == 1_900_000_000_001


def test_only_what_is_after_the_mark_is_unpublished() -> None:
    tokens = [Staged("j", "t", number, ()) for number in (3, 5, 9)]
    assert unpublished(None, tokens) == tokens
    assert unpublished(5, tokens) == tokens[2:]
    assert unpublished(9, tokens) == []


def test_a_later_commit_with_tokens_of_an_earlier_one_adds_only_the_others() -> None:
    """The first may have succeeded though its answer was lost."""
    shared = Shared()
    first, second = token(shared, 1, "a"), token(shared, 2, "b", "c")
    sink_of(OneTable(shared)).commit(7, [first])
    sink_of(OneTable(shared)).commit(8, [first, second])
    sink_of(OneTable(shared)).commit(8, [first, second])
    assert shared.visible == ["a", "b", "c"]


def test_rows_of_the_savepoint_of_another_job_have_a_mark_of_its_own() -> None:
    """Two jobs that start from one savepoint publish them once (K8)."""
    shared = Shared()
    owed = token(shared, 5, "a", job="2" * 32)
    for job in ("3" * 32, "4" * 32):
        sink_of(OneTable(shared), JobId(job)).commit(1, [owed])
        sink_of(OneTable(shared), JobId(job)).commit(2, [token(shared, 1, f"of {job}", job=job)])
    assert shared.visible == ["a", f"of {'3' * 32}", f"of {'4' * 32}"]


def test_a_twin_that_commits_between_the_look_and_the_commit_is_noticed() -> None:
    shared = Shared()
    owed = [token(shared, 1, "a"), token(shared, 2, "b")]
    twin = sink_of(OneTable(shared))
    sink_of(OneTable(shared, lambda: twin.commit(3, owed))).commit(3, owed)
    assert shared.visible == ["a", "b"]


def test_another_writer_only_delays_a_commit() -> None:
    shared = Shared()
    sink_of(OneTable(shared, refuses=9)).commit(3, [token(shared, 1, "a")])
    assert shared.visible == ["a"]


def test_a_table_that_others_change_all_the_time_is_told_and_the_rows_stay() -> None:
    shared = Shared()
    owed = [token(shared, 1, "a")]
    with pytest.raises(TableFailed, match="the table refused each of 10 commits: somebody was faster"):
        sink_of(OneTable(shared, refuses=10)).commit(3, owed)
    sink_of(OneTable(shared)).commit(4, owed)
    assert shared.visible == ["a"]


def test_a_file_that_is_gone_is_not_committed() -> None:
    shared = Shared()
    owed = [token(shared, 1, "a"), token(shared, 2, "b")]
    shared.files.remove("b")
    with pytest.raises(TableChanged, match="the rows in b"):
        sink_of(OneTable(shared)).commit(3, owed)
    assert shared.visible == []


def test_a_table_that_was_replaced_gets_no_files_of_the_one_before() -> None:
    """They would be those of other columns, or of another directory."""
    shared = Shared()
    owed = token(shared, 1, "a")
    shared.identity = "b"
    with pytest.raises(TableChanged, match="these have changed since: the table itself"):
        sink_of(OneTable(shared)).commit(3, [owed])
    assert shared.visible == []


def test_rows_that_wait_for_another_table_are_told() -> None:
    """A job that starts from a savepoint may name another one (K8)."""
    shared = Shared()
    owed = token(shared, 1, "a") | {"table": "the table before"}
    with pytest.raises(TableChanged, match="rows wait for the table before, and the sink now names the table"):
        sink_of(OneTable(shared)).commit(3, [owed])


def test_a_type_may_become_a_wider_one() -> None:
    staged = {"column 1": "int", "column 2": "string", SPEC: "0", "columns by name": "False"}
    assert changed(staged, {"column 1": "long", "column 2": "string", SPEC: "1", "column 3": "int"}) == []
    assert changed(staged, {"column 1": "string"}) == ["column 1", "column 2"]


def test_files_of_several_partition_specs_have_a_commit_each() -> None:
    """A manifest has files of one spec. Which is no longer the table's must not matter (K3)."""
    shared = Shared()
    owed = [token(shared, n, name, spec=spec) for n, name, spec in ((1, "a", "0"), (2, "b", "0"), (3, "c", "1"))]
    sink_of(OneTable(shared)).commit(3, owed)
    sink_of(OneTable(shared)).commit(3, owed)
    assert (shared.visible, shared.specs) == (["a", "b", "c"], ["0", "1"])


def test_what_is_published_is_not_deleted() -> None:
    """An attempt that is told to discard its rows may have been overtaken by one that published them."""
    shared = Shared()
    owed = token(shared, 1, "a")
    sink_of(OneTable(shared)).commit(3, [owed])
    sink_of(OneTable(shared)).abort([owed, token(shared, 2, "b")])
    assert shared.files == {"a"}
    assert shared.visible == ["a"]


@pytest.mark.parametrize("seed", range(200))
def test_rows_are_those_of_the_last_checkpoint_whoever_commits(seed: int) -> None:
    """Attempts die, are believed dead, and commit late. Each row of a complete checkpoint is there once (K8, J13)."""
    draw = random.Random(seed)
    shared = Shared()
    clock = 0.0
    complete: list[tuple[int, list[Any]]] = []  # each checkpoint with what it owes
    living: list[tuple[TableRows, list[Any]]] = []  # sinks of attempts, with what they have staged and not confirmed
    history: list[str] = []  # rows of the complete checkpoints
    sink, owed, known, checkpoint = sink_of(OneTable(shared)), list[Any](), 0, 0
    covered: list[str] = []
    for step in range(40):
        match draw.choice(("stage", "stage", "complete", "commit", "die", "zombie")):
            case "stage":
                clock += draw.choice((0.0, 0.001, -0.002))
                known = next_number(known, clock)
                owed.append(token(shared, known, f"{step}"))
                covered.append(f"{step}")
            case "complete":
                checkpoint += 1
                complete.append((checkpoint, list(owed)))
                history += covered
                covered = []
            case "commit" if complete:
                sink.commit(*complete[-1])
                if draw.random() < 0.7:  # else it dies before it notes that it has committed
                    owed = [each for each in owed if each not in complete[-1][1]]
            case "die":
                living.append((sink, list(owed)))
                sink = sink_of(OneTable(shared))
                owed = list(complete[-1][1]) if complete else []
                covered = []
                if owed:
                    sink.commit(complete[-1][0], owed)
                known = shared.marks.get(f"minflinkd.{JOB}.{SINK}", 0)
                owed = []
            case "zombie" if complete and living:
                draw.choice(living)[0].commit(*draw.choice(complete))
            case _:
                pass
    if complete:
        sink.commit(*complete[-1])
    assert shared.visible == history


def test_a_token_outlives_json() -> None:
    """It is kept in a checkpoint's metadata."""
    file = DataFile("day=1/a.parquet", 5, 2, {"day": "1", "none": None}, '{"numRecords": 2}')
    staged = Staged(job=JOB, table="t", number=3, files=(file,))
    assert decoded(json.loads(json.dumps(msgspec.to_builtins(staged)))) == staged
