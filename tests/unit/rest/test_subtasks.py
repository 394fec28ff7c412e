"""The subtasks of a vertex are partitions where Spark says something of them, otherwise Flink's "not known" (E1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from minflinkd.rest.flink import figures
from minflinkd.rest.subtasks import endpoint, io_of, partition_info, statistics_of, subtask_at, subtasks_of
from minflinkd.rest.vertices import vertex_details
from minflinkd.rpc.jobs import ExecutionState, TaskDetails
from minflinkd.rpc.messages import TaskPartitions
from tests.unit.rest.parties import SKEWED, STARTED, TM, details, partition

RATES = {"busy": 800.0, "backpressured": 100.0}


def task(parallelism: int = 2, **fields: object) -> TaskDetails:
    one = details().tasks[0]
    busy = replace(one.metrics, busy_ms=1000.0)
    return replace(one, task=replace(one.task, parallelism=parallelism), **({"metrics": busy} | fields))


def told(*rows: int, partitions: int | None = None, first: int = 0) -> TaskPartitions:
    found = tuple(partition(first + index, many, many) for index, many in enumerate(rows))
    return TaskPartitions(batch_id=41, partitions=len(rows) if partitions is None else partitions, told=found)


def test_each_partition_is_a_subtask_and_the_longest_one_sets_the_pace() -> None:
    """The others wait for it, so it is as busy as the task, and they are less so."""
    views = subtasks_of(task(), SKEWED)
    assert [(view.index, view.share) for view in views] == [(0, 1.0), (1, 0.2)]
    assert [io_of(task(), view).read_records for view in views] == [900, 100]
    assert [io_of(task(), view).accumulated_busy_time for view in views] == [1000, 200]
    found = [figures.of_subtask(task(), RATES, view) for view in views]
    assert [one["busyTimeMsPerSecond"] for one in found] == [800, 160]
    assert [one["idleTimeMsPerSecond"] for one in found] == [100, 740]
    assert [one["numRecordsInPerSecond"] for one in found] == [750.0, 90_000 / 1080]
    assert [one["partition.numRecordsIn"] for one in found] == [90, 10]


def test_parallelism_is_the_number_of_subtasks() -> None:
    """Of a stage with fewer partitions the others have nothing to do; one with more has more subtasks."""
    for found, many in ((told(5), 3), (told(5, 5, 5), 3), (told(*[5] * 7), 7), (None, 3)):
        vertex = vertex_details(details(), task(3), STARTED + 9000, found)
        assert (vertex.parallelism, len(vertex.subtasks)) == (many, many)
        assert vertex.max_parallelism >= many
    few = vertex_details(details(), task(3), STARTED + 9000, told(5))
    assert [one.metrics.read_records for one in few.subtasks] == [50, 0, 0]
    assert [one.minflinkd is None for one in few.subtasks] == [False, True, True]


def test_partitions_that_are_not_told_are_not_known() -> None:
    """Only the longest of very many are told. Of the others nothing is made up."""
    views = subtasks_of(task(3), told(5, 5, partitions=9000, first=70))
    assert [view.index for view in views] == [0, 70, 71]
    assert [io_of(task(3), view).read_records_complete for view in views] == [False, True, True]


def test_of_several_subtasks_that_are_not_known_nobody_has_what_the_task_has_together() -> None:
    """Otherwise their sum would be a multiple of it. What holds of all of them is told."""
    [first, second] = subtasks_of(task(), None)
    assert not io_of(task(), first).read_bytes_complete
    found = figures.of_subtask(task(), RATES, second)
    assert not {"numRecordsIn", "numRecordsOut", "state.rows", "numRecordsInPerSecond"} & found.keys()
    assert (found["busyTimeMsPerSecond"], found["microBatch.id"]) == (800, 41)
    [alone] = subtasks_of(task(1), None)
    assert io_of(task(1), alone).read_records == 5000
    assert figures.of_subtask(task(1), RATES, alone)["numRecordsIn"] == 5000


def test_before_the_first_micro_batch_all_have_read_nothing_as_in_flink() -> None:
    new = task(metrics=replace(details().tasks[0].metrics, batches=0, batch_id=-1))
    for view in subtasks_of(new, TaskPartitions()):
        assert io_of(new, view).read_records_complete
        assert io_of(new, view).read_records == 0
    assert not io_of(task(), subtasks_of(task(), TaskPartitions())[0]).read_records_complete, "its TaskManager forgot"


def test_a_task_that_has_no_slot_has_subtasks_that_are_nowhere() -> None:
    waiting = task(state=ExecutionState.CREATED, attempt_id=None, resource_id=None, start_ms=-1)
    vertex = vertex_details(details(), waiting, STARTED, None)
    assert {(one.endpoint, one.taskmanager_id) for one in vertex.subtasks} == {("(unassigned)", "(unassigned)")}
    assert {(one.status, one.start_time, one.duration) for one in vertex.subtasks} == {("CREATED", -1, -1)}


def test_on_a_cluster_a_subtask_is_where_its_executor_is() -> None:
    found = TaskPartitions(
        partitions=2, told=(partition(0, 1, 1, host="host-b", executor="7", attempt=1), partition(1, 1, 1))
    )
    views = subtasks_of(task(), found)
    assert [endpoint(task(), view) for view in views] == ["host-b", TM]
    shown = partition_info(views[0])
    assert shown is not None
    assert (shown.executor, shown.attempt, shown.status) == ("7", 1, "SUCCESS")


def test_what_is_aggregated_is_what_is_known() -> None:
    vertex = vertex_details(details(), task(), STARTED + 9000, SKEWED)
    rows = vertex.aggregated["metrics"]["read-records"]
    assert (rows["min"], rows["max"], rows["avg"], rows["sum"], rows["median"]) == (100, 900, 500, 1000, 500)
    unknown = vertex_details(details(), task(), STARTED + 9000, None)
    assert set(unknown.aggregated["metrics"]["read-records"].values()) == {0}


def test_percentiles_are_flinks() -> None:
    """Between two values they are interpolated, at the place p * (n + 1)."""
    found = statistics_of([10, 20, 30, 40, 50])
    assert (found["p25"], found["median"], found["p75"], found["p95"]) == (15, 30, 45, 50)
    assert set(statistics_of([7]).values()) == {7}


PARTITIONS = st.dictionaries(st.integers(0, 40), st.tuples(st.integers(0, 10**6), st.integers(0, 10**9)), max_size=20)


@given(parallelism=st.integers(1, 30), found=PARTITIONS, all_told=st.booleans(), batches=st.integers(0, 3))
def test_whatever_is_told_every_partition_is_one_subtask_and_nothing_is_made_up(
    parallelism: int, found: dict[int, tuple[int, int]], all_told: bool, batches: int
) -> None:
    """There are never fewer subtasks than the parallelism, and what they have read is what the partitions have."""
    one = task(parallelism)
    one = replace(one, metrics=replace(one.metrics, batches=batches))
    answer = TaskPartitions(
        batch_id=41,
        partitions=len(found) if all_told else len(found) + 1,
        told=tuple(partition(index, ms, rows) for index, (ms, rows) in found.items()),
    )
    views = subtasks_of(one, answer)
    indexes = [view.index for view in views]
    assert indexes == sorted(set(indexes))
    assert len(views) == max(parallelism, len(found))
    assert set(found) <= set(indexes)
    assert all(0 <= view.share <= 1 for view in views)
    read = [io_of(one, view) for view in views]
    assert sum(each.read_records for each in read if each.read_records_complete) == 10 * sum(
        rows for _, rows in found.values()
    ) or (len(views) == 1 and not found)
    unknown = [view for view, each in zip(views, read, strict=True) if not each.read_records_complete]
    assert not unknown or not all_told or (not found and batches)
    assert [partition_info(view) is not None for view in views] == [index in found for index in indexes]
    vertex = vertex_details(details(), one, STARTED + 9000, answer)
    assert vertex.parallelism == len(vertex.subtasks) == len(views) <= vertex.max_parallelism
    assert all(subtask_at(one, views, view.index) is view for view in views)
