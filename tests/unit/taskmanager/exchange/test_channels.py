"""A task's channels on a real disk: what a cut covers, how event time moves, and what a snapshot restores."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.exchange.channels import (
    LAST_BATCH_PATIENCE,
    CheckpointEnded,
    CutState,
    StartingPoint,
    TaskChannels,
)
from minflinkd.taskmanager.exchange.input import Input
from minflinkd.taskmanager.exchange.log import (
    DATA,
    END_OF_TIME_MS,
    DataFile,
    Entry,
    EntryKind,
    ExchangeDamaged,
    LogReader,
    LogWriter,
    consumed,
    covered,
    entry_path,
)

A, B = VertexId("a"), VertexId("b")
SCHEMA_OF_ALL = '{"type": "struct", "fields": []}'


class World:
    """The logs of the inputs, an output, and a clock."""

    def __init__(self, root: Path, *names: VertexId, first: int = 0) -> None:
        self.root = root
        self.now = 0.0
        self.first = first
        self.logs = {name: LogWriter(root / name, ("task",), first=first) for name in names}
        for log in self.logs.values():
            log.describe(SCHEMA_OF_ALL)
        self.output = LogWriter(root / "output", ("next",))

    def channels(
        self,
        position: int | None = None,
        idle: float | None = None,
        aligned_timeout: float | None = None,
        **start: Any,
    ) -> TaskChannels:
        """Return the channels of an attempt. `start` has fields of its StartingPoint."""
        at = self.first if position is None else position
        return TaskChannels(
            tuple(self.input(name, at, idle, start.get("oldest", 0)) for name in self.logs),
            self.output,
            StartingPoint(dict.fromkeys(self.logs, at), **start),
            hold=True,
            aligned_timeout=aligned_timeout,
            clock=lambda: self.now,
        )

    def input(self, name: VertexId, position: int, idle: float | None, oldest: int) -> Input:
        return Input(
            name,
            self.root / name,
            self.restored(name),
            reader="task",
            position=position,
            first=self.first,
            idle_timeout=idle,
            oldest=oldest,
        )

    def restored(self, name: VertexId) -> Path:
        return self.root / "restored" / name

    def data(self, name: VertexId, file: str = "f", watermark_ms: int | None = None) -> int:
        (self.root / name / DATA / file).write_bytes(b"rows")
        entry = Entry(kind=EntryKind.DATA, files=(DataFile(file, 1, 4),), watermark_ms=watermark_ms)
        return self.logs[name].append(entry)

    def barrier(self, name: VertexId, number: int) -> int:
        return self.logs[name].append(Entry(kind=EntryKind.BARRIER, checkpoint_id=number))

    def target(self, number: int = 1) -> Path:
        return self.root / f"snapshot-{number}"

    def written(self) -> list[Entry]:
        return [entry for _, entry in LogReader(self.root / "output", 0).read()]


def batch(number: int, watermark_ms: int | None = None) -> Entry:
    return Entry(kind=EntryKind.DATA, batch_id=number, watermark_ms=watermark_ms)


def cut(channels: TaskChannels, number: int) -> CutState:
    made = channels.await_cut(number, 0.0)
    assert made is not None
    return made


def test_a_barrier_lies_behind_exactly_the_micro_batches_of_its_cut(tmp_path: Path) -> None:
    """Barriers are in the right place even while micro-batches are published without a pause (C1, J8)."""
    world = World(tmp_path)
    channels, cuts = world.channels(), dict[int, int]()

    def publish() -> None:
        for number in range(300):
            channels.publish(number, {}, batch(number))

    thread = threading.Thread(target=publish)
    thread.start()
    for number in range(1, 30):
        channels.trigger(number, world.target(number))
        cuts[number] = cut(channels, number).batch_id
    thread.join()
    last = -1
    for entry in world.written():
        if entry.kind is EntryKind.BARRIER:
            assert cuts.pop(entry.checkpoint_id) == last
        else:
            last = entry.batch_id
    assert cuts == {}


def test_a_repeated_micro_batch_appears_once(tmp_path: Path) -> None:
    """A micro-batch that Spark repeats after a restore is not written again (J9)."""
    world = World(tmp_path)
    channels = world.channels(batch_id=4)
    for number in (4, 5, 5, 3, 6):
        channels.publish(number, {}, batch(number))
    assert [entry.batch_id for entry in world.written()] == [5, 6]


def test_a_cut_says_where_barriers_lie_and_releases_them(tmp_path: Path) -> None:
    """A cut records where the barriers are, and the reader may then pass them (C2)."""
    world = World(tmp_path, A, B)
    channels = world.channels()
    channels.trigger(1, world.target())
    world.data(A)
    world.barrier(A, 1)
    world.barrier(B, 1)
    assert channels.await_cut(1, 0.0) is None
    world.data(A, "after")
    assert (channels.readable(A, None), channels.readable(A, 1)) == (1, 1)
    channels.publish(0, {A: 1, B: 0}, batch(0))
    made = cut(channels, 1)
    assert (made.cut.barriers, made.batch_id, made.output, made.files) == ({A: 1, B: 0}, 0, 1, ())
    assert (channels.readable(A, 1), channels.readable(B, 0)) == (3, 0)
    assert consumed(tmp_path / A, "task") == 1


def test_who_waits_for_a_checkpoint_that_is_aborted_is_told(tmp_path: Path) -> None:
    """Whoever waits for a checkpoint hears of its abort, also when the abort is implied by a later trigger (C13)."""
    world = World(tmp_path, A)
    channels = world.channels()
    channels.trigger(1, world.target())
    channels.abort(1)
    with pytest.raises(CheckpointEnded):
        channels.await_cut(1, 0.0)
    channels.trigger(2, world.target())
    channels.trigger(3, world.target(), oldest=3)
    with pytest.raises(CheckpointEnded):
        channels.await_cut(2, 0.0)


def test_a_late_barrier_of_a_checkpoint_that_has_ended_is_released_without_a_checkpoint(tmp_path: Path) -> None:
    """Otherwise the reader would hold at the barrier, and the task would never begin another micro-batch (C13)."""
    world = World(tmp_path, A)
    channels = world.channels()
    channels.trigger(1, world.target())
    channels.trigger(2, world.target(), oldest=2)
    channels.abort(2)
    world.barrier(A, 1)
    world.data(A, "after")
    channels.poll()
    assert channels.readable(A, 0) == 2


def test_an_unaligned_cut_links_the_unread_entries_with_their_data(tmp_path: Path) -> None:
    """A task that is restored from them finds a log (C5)."""
    world = World(tmp_path, A)
    channels = world.channels(aligned_timeout=1.0)
    for name in ("x", "y", "z"):
        world.data(A, name)
    world.barrier(A, 1)
    world.data(A, "after")
    channels.publish(0, {A: 1}, None)
    channels.trigger(1, world.target())
    assert channels.await_cut(1, 0.0) is None
    world.now = 2.0
    made = cut(channels, 1)
    assert made.cut.unread == {A: 1}
    assert (made.cut.overtaken, made.cut.held) == (8, 4)
    assert {name for name, _ in made.files} == {
        "inputs/a/schema.json",
        "inputs/a/entries/000000000001",
        "inputs/a/entries/000000000002",
        "inputs/a/data/y",
        "inputs/a/data/z",
    }
    again = World(tmp_path / "again", A, first=3)
    again.restored(A).parent.mkdir(parents=True)
    (world.target() / A).rename(again.restored(A))
    channels = again.channels(position=1, batch_id=0)
    assert again.barrier(A, 2) == 3
    channels.trigger(2, again.target())
    assert channels.await_cut(2, 0.0) is None
    channels.publish(1, {A: 3}, None)
    assert cut(channels, 2).cut.barriers == {A: 3}


def test_barriers_among_restored_entries_belong_to_nobody(tmp_path: Path) -> None:
    """The barrier was written for a checkpoint that was aborted before the restored one was taken (C5)."""
    world = World(tmp_path, A, first=2)
    left = LogWriter(world.restored(A), ())
    left.append(Entry(kind=EntryKind.BARRIER, checkpoint_id=7))
    left.append(Entry(kind=EntryKind.WATERMARK, watermark_ms=5))
    channels = world.channels(position=0, batch_id=0)
    world.barrier(A, 8)
    channels.trigger(8, world.target(), oldest=8)
    channels.publish(1, {A: 2}, None)
    assert cut(channels, 8).cut.barriers == {A: 2}


def test_entries_that_were_not_restored_are_missed_at_once(tmp_path: Path) -> None:
    """Nothing is skipped in silence (C5)."""
    with pytest.raises(ExchangeDamaged, match="stands at 3 and begins at 5"):
        World(tmp_path, A, first=5).channels(position=3)


def test_unread_entries_that_are_gone_fail_the_checkpoint_and_not_the_task(tmp_path: Path) -> None:
    """The unread entries cannot be saved, so the checkpoint fails; the task goes on (C5)."""
    world = World(tmp_path, A)
    channels = world.channels(aligned_timeout=1.0)
    world.data(A)
    world.barrier(A, 1)
    channels.trigger(1, world.target())
    channels.poll()
    entry_path(tmp_path / A, 0).unlink()
    world.now = 5.0
    with pytest.raises(ExchangeDamaged, match="gone before it could be saved"):
        channels.await_cut(1, 0.0)
    assert world.written() == [], "no barrier for what was not cut"
    assert channels.publish(0, {A: 1}, batch(0))


def test_nothing_is_published_behind_the_cut_that_the_job_stops_with(tmp_path: Path) -> None:
    """Publishing is closed until that checkpoint is aborted (C24)."""
    world = World(tmp_path)
    channels = world.channels()
    assert channels.publish(0, {}, batch(0))
    channels.trigger(1, world.target(), stop=True)
    assert cut(channels, 1).batch_id == 0
    assert not channels.begin()
    assert not channels.publish(1, {}, batch(1))
    assert channels.publish(0, {}, batch(0)), "what is in the cut is published"
    channels.trigger(2, world.target(2))
    assert cut(channels, 2).batch_id == 0
    channels.abort(1)
    assert channels.begin()
    assert channels.publish(1, {}, batch(1))


def test_the_micro_batch_in_progress_belongs_to_the_cut_that_the_job_stops_with(tmp_path: Path) -> None:
    """Whatever continues from that cut need not repeat the micro-batch (C1, H3)."""
    world = World(tmp_path)
    channels = world.channels()
    assert channels.begin()
    channels.trigger(1, world.target(), stop=True)
    assert channels.await_cut(1, 0.0) is None
    assert not channels.begin()
    assert channels.publish(0, {}, batch(0))
    assert cut(channels, 1).batch_id == 0
    assert not channels.begin()


def test_a_stop_waits_for_the_micro_batch_that_is_being_planned(tmp_path: Path) -> None:
    """Otherwise Spark's work on it would be thrown away and repeated, and its results would be seen later (H3)."""
    world = World(tmp_path)
    channels = world.channels()
    channels.publish(0, {}, batch(0))
    channels.trigger(1, world.target(), stop=True, planned=1)
    assert channels.await_cut(1, 0.0) is None
    assert channels.begin()
    assert channels.await_cut(1, 0.0) is None
    assert not channels.begin(), "only that one"
    assert channels.publish(1, {}, batch(1))
    assert cut(channels, 1).batch_id == 1
    assert not channels.begin()


def test_a_stop_does_not_wait_for_what_was_planned_and_is_published(tmp_path: Path) -> None:
    """Without new input no other micro-batch would ever begin, so the stop would wait in vain (H3)."""
    world = World(tmp_path)
    channels = world.channels()
    assert channels.begin()
    channels.publish(0, {}, batch(0))
    channels.trigger(1, world.target(), stop=True, planned=0)
    assert cut(channels, 1).batch_id == 0


def test_a_planned_micro_batch_that_does_not_begin_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    """The query that planned it may have failed (C24)."""
    world = World(tmp_path)
    channels = world.channels()
    channels.publish(0, {}, batch(0))
    channels.trigger(1, world.target(), stop=True, planned=1)
    world.now += LAST_BATCH_PATIENCE
    assert cut(channels, 1).batch_id == 0
    assert not channels.begin()


def test_a_repeated_micro_batch_ends_as_well(tmp_path: Path) -> None:
    """The stop does not wait for a micro-batch that was published before and is only repeated (J9)."""
    world = World(tmp_path)
    channels = world.channels()
    channels.publish(0, {}, batch(0))
    assert channels.begin()
    channels.trigger(1, world.target(), stop=True)
    assert channels.publish(0, {}, batch(0))
    assert cut(channels, 1).batch_id == 0


def test_a_micro_batch_that_takes_too_long_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    """Others continue from the micro-batch before it (C24)."""
    world = World(tmp_path)
    channels = world.channels()
    channels.publish(0, {}, batch(0))
    assert channels.begin()
    channels.trigger(1, world.target(), stop=True)
    world.now += LAST_BATCH_PATIENCE - 0.1
    assert channels.await_cut(1, 0.0) is None
    world.now += 0.1
    assert cut(channels, 1).batch_id == 0
    assert not channels.publish(1, {}, batch(1))


def test_a_stop_that_is_given_up_while_it_waits_leaves_nothing_closed(tmp_path: Path) -> None:
    """After the abort, publishing is open again (C13)."""
    world = World(tmp_path)
    channels = world.channels()
    assert channels.begin()
    channels.trigger(1, world.target(), stop=True)
    channels.abort(1)
    with pytest.raises(CheckpointEnded):
        channels.await_cut(1, 0.0)
    assert channels.publish(0, {}, batch(0))
    assert channels.begin()


def test_a_stop_whose_abort_was_lost_ends_with_the_next_trigger(tmp_path: Path) -> None:
    """Otherwise the task would look RUNNING for ever and process nothing (C13, A14a)."""
    world = World(tmp_path)
    channels = world.channels()
    assert channels.publish(0, {}, batch(0))
    channels.trigger(2, world.target(2), stop=True)
    assert cut(channels, 2).batch_id == 0
    channels.trigger(1, world.target(1), oldest=1)
    assert not channels.begin(), "an earlier trigger that is late says nothing about it"
    channels.trigger(3, world.target(3), oldest=3)
    assert channels.begin()
    assert channels.publish(1, {}, batch(1))


def test_the_end_of_input_is_taken_in_with_what_is_before_it(tmp_path: Path) -> None:
    """The end of an input counts only when the task has processed everything before it (J8a)."""
    world = World(tmp_path, A)
    channels = world.channels()
    world.data(A)
    world.logs[A].append(Entry(kind=EntryKind.END, watermark_ms=END_OF_TIME_MS))
    channels.publish(0, {A: 1}, None)
    assert not channels.all_ended()
    channels.publish(1, {A: 2}, None)
    assert channels.all_ended()
    assert channels.watermarks() == {A: END_OF_TIME_MS}


def test_a_watermark_counts_when_the_task_has_what_is_before_it(tmp_path: Path) -> None:
    """A watermark counts only when the task has processed everything before it (J8a)."""
    world = World(tmp_path, A, B)
    channels = world.channels()
    world.data(A, "x", watermark_ms=100)
    world.data(A, "y", watermark_ms=200)
    channels.publish(0, {A: 1, B: 0}, None)
    assert channels.watermarks() == {A: 100}
    channels.publish(1, {A: 2, B: 0}, None)
    assert channels.watermarks() == {A: 200}


def test_an_idle_input_goes_along_with_the_others(tmp_path: Path) -> None:
    """An idle input never moves beyond the others, so later rows of it are late only if theirs would be (J8a)."""
    world = World(tmp_path, A, B)
    channels = world.channels(idle=10.0)
    world.data(A, "x", watermark_ms=100)
    world.data(B, "x", watermark_ms=50)
    channels.publish(0, {A: 1, B: 1}, None)
    assert channels.watermarks() == {A: 100, B: 50}
    world.now = 11.0
    world.data(A, "y", watermark_ms=300)
    world.barrier(B, 1)  # a checkpoint is no sign of life
    channels.publish(1, {A: 2, B: 1}, None)
    assert channels.watermarks() == {A: 300, B: 300}
    world.data(B, "y", watermark_ms=60)
    channels.publish(2, {A: 2, B: 3}, None)
    assert channels.watermarks() == {A: 300, B: 60}


def test_an_input_that_never_said_anything_is_idle_after_its_time(tmp_path: Path) -> None:
    """An input that never had an entry is idle after the idle timeout (J8a)."""
    world = World(tmp_path, A, B)
    channels = world.channels(idle=10.0)
    world.data(A, watermark_ms=100)
    channels.publish(0, {A: 1, B: 0}, None)
    assert channels.watermarks() == {A: 100}
    world.now = 9.0
    channels.poll()
    assert channels.watermarks() == {A: 100}
    world.data(A, watermark_ms=110)
    channels.publish(1, {A: 2, B: 0}, None)
    world.now = 10.5
    assert channels.watermarks() == {A: 110, B: 110}


def test_where_all_inputs_are_idle_the_furthest_counts(tmp_path: Path) -> None:
    """If all inputs are idle, the highest watermark counts (J8a)."""
    world = World(tmp_path, A, B)
    channels = world.channels(idle=1.0)
    world.data(A, watermark_ms=100)
    world.data(B, watermark_ms=50)
    channels.publish(0, {A: 1, B: 1}, None)
    world.now = 100.0
    assert channels.watermarks() == {A: 100, B: 100}


def test_rows_that_wait_for_a_slow_task_are_no_idleness(tmp_path: Path) -> None:
    """A micro-batch that takes longer than the idle timeout drops no rows as late (J8a)."""
    world = World(tmp_path, A, B)
    channels = world.channels(idle=1.0)
    world.data(A, watermark_ms=100)
    world.data(B, "x", watermark_ms=50)
    channels.publish(0, {A: 1, B: 1}, None)
    world.data(B, "y", watermark_ms=60)
    channels.poll()
    world.now = 60.0
    world.data(A, "z", watermark_ms=900)
    channels.publish(1, {A: 2, B: 1}, None)
    assert channels.watermarks() == {A: 900, B: 50}


def test_an_idle_task_tells_a_watermark_only_when_it_moves(tmp_path: Path) -> None:
    """An idle task writes a watermark only when it moves forward (J8a)."""
    world = World(tmp_path)
    channels = world.channels()
    channels.publish(0, {}, batch(0, watermark_ms=10))
    for told in (10, 20, 20, 15):
        channels.put_watermark(told)
    assert [entry.watermark_ms for entry in world.written()] == [10, 20]


def test_a_restored_task_tells_its_last_watermark_again(tmp_path: Path) -> None:
    """The task's readers began anew, and the task may have nothing more to say (J8a)."""
    world = World(tmp_path / "before")
    channels = world.channels()
    channels.publish(0, {}, batch(0, watermark_ms=10))
    channels.trigger(1, world.target())
    promised = cut(channels, 1).watermark_ms
    world = World(tmp_path / "after")
    channels = world.channels(batch_id=0, promised=promised)
    channels.put_watermark(10)
    assert [(entry.kind, entry.watermark_ms) for entry in world.written()] == [(EntryKind.WATERMARK, 10)]


# --- restarts in part ------------------------------------------------------------------------------------------------


def restarted(world: World, made: CutState, oldest: int, **fields: Any) -> TaskChannels:
    """Return the channels of the next attempt, restored from `made`, while the tasks upstream run on."""
    world.first = made.cut.barriers[A]
    return world.channels(batch_id=made.batch_id, oldest=oldest, **fields)


def test_a_task_that_restarts_alone_reads_from_where_its_checkpoint_was_cut(tmp_path: Path) -> None:
    """Barriers of checkpoints that have ended meanwhile hold nothing, although nobody releases them (R16)."""
    world = World(tmp_path, A)
    channels = world.channels()
    world.data(A, "before")
    channels.publish(0, {A: 1}, batch(0))
    world.barrier(A, 1)
    channels.trigger(1, world.target())
    made = cut(channels, 1)
    world.data(A, "x")
    world.barrier(A, 2)  # aborted when the task failed
    world.data(A, "y")
    channels = restarted(world, made, oldest=3)
    assert channels.readable(A, 1) == 5
    assert [file.name for file in channels.data_files(A, 1, 5)] == ["x", "y"]
    world.barrier(A, 3)
    world.data(A, "z")
    assert channels.readable(A, 1) == 5, "the next checkpoint holds as ever"


def test_a_task_that_restarts_alone_learns_the_watermark_of_its_input(tmp_path: Path) -> None:
    """A task upstream that runs on does not repeat it, but its barrier has it (J8a, R16)."""
    upstream = World(tmp_path / "up")
    writer = upstream.channels()
    writer.publish(0, {}, batch(0, watermark_ms=7_000))
    writer.trigger(1, upstream.target())
    at = cut(writer, 1).output
    world = World(tmp_path, A, first=at)
    for entry in upstream.written()[at:]:
        world.logs[A].append(entry)
    channels = world.channels(oldest=2)
    assert channels.readable(A, at) == at + 1
    channels.publish(0, {A: at + 1}, batch(0))
    assert channels.watermarks() == {A: 7_000}


def test_what_a_complete_checkpoint_covers_is_told_to_the_tasks_upstream(tmp_path: Path) -> None:
    """Not what an aborted one would, nor what the task has read since the cut (R16)."""
    world = World(tmp_path, A)
    channels = world.channels()
    for number in (1, 2):
        world.data(A, f"f{number}")
        position = world.barrier(A, number)
        channels.publish(number - 1, {A: position}, batch(number - 1))
        channels.trigger(number, world.target(number))
        cut(channels, number)
    channels.abort(2)
    channels.confirm(2)
    assert covered(tmp_path / A, "task") is None
    channels.confirm(1)
    assert covered(tmp_path / A, "task") == 1
