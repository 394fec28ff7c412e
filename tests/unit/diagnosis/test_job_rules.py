"""What each rule says of a job, on frozen facts (E19a)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from minflinkd.checkpoint.causes import FailureCause
from minflinkd.checkpoint.damage import DamageRecord
from minflinkd.checkpoint.statistics import Calls, CheckpointStatus
from minflinkd.diagnosis.facts import History, JobFacts, silent_after
from minflinkd.diagnosis.findings import Finding, Severity
from minflinkd.diagnosis.job import RULES, diagnose, summary
from minflinkd.diagnosis.words import line
from minflinkd.jobgraph.model import BadRecordSink, Input, JobGraph, OnBadRecord, Source, Vertex
from minflinkd.rpc.jobs import JobStatus, RepeatedFailures
from minflinkd.rpc.messages import BatchWork, PendingRecords, SessionPhase, SinkCompactions, TaskManagerLoss
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.errors import ErrorInfo, Kind
from minflinkd.runtime.ids import ResourceId, TaskId, VertexId
from tests.unit.diagnosis.facts import (
    FIRST,
    GRAPH,
    JOB,
    NOW,
    SECOND,
    START,
    TM,
    checkpoint,
    checkpoints,
    details,
    facts,
    failure,
    first,
    resources,
    second,
    task,
    task_manager,
)


def only(known: JobFacts) -> Finding:
    """Return the one finding."""
    found = diagnose(known)
    assert len(found) == 1, [each.code for each in found]
    return found[0]


def codes(known: JobFacts) -> list[str]:
    return [each.code for each in diagnose(known)]


# --- healthy jobs ---


def test_a_healthy_job_has_no_finding_and_is_bounded_by_its_sources() -> None:
    assert diagnose(facts()) == ()
    assert summary(facts(), ()).startswith("The job keeps up: only its sources bound it.")


def test_facts_that_are_missing_lead_to_no_finding() -> None:
    """A Dispatcher or ResourceManager that does not answer, and no history, are no ailment of the job."""
    assert diagnose(facts(checkpoints=None, resources=None, task_managers=())) == ()


@given(
    batch_ms=st.floats(1, 900),
    source=st.floats(0, 0.4),
    commit=st.floats(0, 0.3),
    rows=st.integers(1, 10**9),
    late=st.integers(0, 0),
    idle=st.integers(0, 50_000),
    backlog=st.integers(0, 2**30),
    async_ms=st.floats(0, 4_000),
    heard=st.integers(0, 2_999),
    state=st.integers(0, 10**7),
)
def test_no_healthy_job_has_a_finding(
    batch_ms: float,
    source: float,
    commit: float,
    rows: int,
    late: int,
    idle: int,
    backlog: int,
    async_ms: float,
    heard: int,
    state: int,
) -> None:
    """Whatever its figures are, as long as none of them is over its threshold."""
    metrics: dict[str, Any] = {
        "batch_ms": batch_ms,
        "batch_phases": {"latestOffset": source * batch_ms},
        "commit_ms": commit * batch_ms,
        "rows_in": rows,
        "late_rows": late,
        "output_backlog": backlog,
        "state_rows": state,
        "source_rows_ms": {"clicks": NOW - idle},
        "watermark_moved_ms": NOW - idle,
        "work": BatchWork(batch_id=3, batch_ms=batch_ms, partitions=2, longest_ms=batch_ms, others_ms=1.0),
    }
    done = checkpoint()
    done = replace(done, tasks=(replace(done.tasks[0], async_ms=async_ms),))
    known = facts(
        details(first(**metrics), second(**metrics)),
        checkpoints=checkpoints(latest_completed=done),
        task_managers=(task_manager(heard_ms=NOW - heard),),
    )
    assert diagnose(known) == ()


def test_every_rule_says_in_its_docstring_what_it_finds() -> None:
    assert all((rule.__doc__ or "").strip().endswith(".") for rule in RULES)


# --- where the time goes ---

SLOW: dict[str, Any] = {"batch_ms": 4_000.0}


def test_a_source_that_is_slow_to_list_bounds_the_job() -> None:
    found = only(facts(details(first(**SLOW, batch_phases={"latestOffset": 2_500.0, "getBatch": 500.0}), second())))
    assert (found.code, found.task, found.figure) == ("bounded-by-source", FIRST, "75 %")
    assert "spends 3 s of each 4 s finding out what is new in clicks" in found.sentence


def test_state_commits_that_take_most_of_a_micro_batch_bound_the_job() -> None:
    found = only(facts(details(first(), second(**SLOW, commit_ms=2_400.0, state_rows=1_000_000))))
    assert (found.code, found.task, found.figure) == ("bounded-by-state-commits", SECOND, "60 %")
    assert "writing its state of 1,000,000 rows" in found.sentence


def test_python_functions_that_take_most_of_the_time_bound_the_job() -> None:
    work = BatchWork(batch_id=3, batch_ms=4_000, task_ms=7_000, python_ms=6_300)
    found = only(facts(details(first(), second(**SLOW, work=work))))
    assert (found.code, found.figure) == ("bounded-by-python", "90 %")
    assert "Python functions take 6.3 s of the 7 s" in found.sentence


def test_a_jvm_that_often_stands_still_bounds_its_tasks() -> None:
    """Named once for a TaskManager, with what is in use of its heap. Other TaskManagers do not matter."""
    used = {"jvm.gc_share": 0.34, "jvm.heap.used_bytes": 0.97 * 2**30, "jvm.heap.max_bytes": 2.0**30}
    found = only(facts(task_managers=(task_manager(metrics=used),)))
    assert (found.code, found.figure, found.task_manager) == ("bounded-by-garbage-collection", "34 %", TM)
    assert "993.3 MiB of its heap of 1.0 GiB is in use" in found.sentence
    assert codes(facts(task_managers=(task_manager(metrics={"jvm.gc_share": 0.09}),))) == []
    assert codes(facts(task_managers=(task_manager(), task_manager(ResourceId("tm-2"), metrics=used)))) == []


SKEWED = BatchWork(
    batch_id=3, batch_ms=4_000, partitions=4, longest_ms=3_600, others_ms=400, other_rows=1_000, uneven_ms=2_400
)


@pytest.mark.parametrize(("most", "words"), [(90_000, "a few keys have most of the rows"), (1_100, "though its rows")])
def test_one_partition_for_which_the_others_wait_is_named_with_its_reason(most: int, words: str) -> None:
    found = only(facts(details(first(), second(**SLOW, work=replace(SKEWED, most_rows=most)))))
    assert (found.code, found.figure) == ("skewed-partitions", "9.0 times")
    assert "One of the 4 partitions" in found.sentence
    assert words in found.sentence


def test_two_skewed_stages_that_each_take_a_quarter_of_a_micro_batch_are_found() -> None:
    """A sink that reads its rows twice makes them: each is short, and both wait for the same key."""
    work = replace(SKEWED, longest_ms=1_000, others_ms=100, uneven_ms=1_550)
    assert codes(facts(details(first(), second(**SLOW, work=work)))) == ["skewed-partitions"]


@pytest.mark.parametrize("changes", [{"others_ms": 3_000}, {"uneven_ms": 1_000}])
def test_partitions_are_no_finding_if_they_are_even_or_would_gain_little_from_it(changes: dict[str, float]) -> None:
    assert codes(facts(details(first(), second(**SLOW, work=replace(SKEWED, **changes))))) == []


def test_a_micro_batch_that_does_not_end_is_found_before_it_ends() -> None:
    since = NOW - 180_000
    found = only(facts(details(first(batch_since_ms=since), second())))
    assert (found.code, found.since_ms) == ("stuck-micro-batch", since)
    assert "Micro-batch 101 of task clicks has run for 3 min; the one before took 120 ms" in found.sentence


def test_a_micro_batch_that_takes_as_long_as_those_before_is_not_stuck() -> None:
    assert codes(facts(details(first(batch_since_ms=NOW - 180_000, batch_ms=60_000.0), second()))) == []


# --- what comes in ---


@pytest.mark.parametrize(("quiet", "severity"), [(120_000, Severity.INFO), (1_200_000, Severity.WARNING)])
def test_a_source_without_data_is_named_with_its_path(quiet: int, severity: Severity) -> None:
    """A minute of silence is worth a word, ten are worth a warning."""
    metrics = {"source_rows_ms": {"clicks": NOW - quiet}}
    found = only(facts(details(first(**metrics), second())))
    assert (found.code, found.severity, found.since_ms) == ("source-without-data", severity, NOW - quiet)
    assert found.sentence.startswith("Source clicks (/data/clicks) has delivered no row for ")


@pytest.mark.parametrize(
    ("waiting", "said"),
    [(7_000, "waits for it, although 7,000 records wait in Kafka"), (0, "waits for it; no record waits in Kafka")],
)
def test_of_a_silent_source_it_is_said_whether_kafka_has_records_for_it(waiting: int, said: str) -> None:
    """If it has, the fault is not that of whoever writes there."""
    pending = {"clicks": PendingRecords(records=waiting, parts={"clicks.0": waiting})}
    metrics = {"source_rows_ms": {"clicks": NOW - 120_000}, "pending": pending}
    found = only(facts(details(first(**metrics), second())))
    assert (found.code, found.sentence.endswith(said)) == ("source-without-data", True)


@pytest.mark.parametrize(
    ("records", "severity"), [(53_000, None), (54_000, Severity.INFO), (540_000, Severity.WARNING)]
)
def test_a_source_is_behind_if_a_minute_is_not_enough_for_what_waits(records: int, severity: Severity | None) -> None:
    """Ten minutes are worth a warning. The task reads 900 rows a second."""
    parts = {"clicks.0": records // 2, "clicks.1": records // 2}
    known = facts(details(first(pending={"clicks": PendingRecords(records=records, parts=parts)}), second()))
    if severity is None:
        assert codes(known) == []
        return
    found = only(known)
    assert (found.code, found.severity) == ("source-behind", severity)
    assert f"{records:,} records of Kafka wait for source clicks" in found.sentence


def test_of_a_source_that_is_behind_the_partition_is_named_that_has_most_records() -> None:
    parts = {"clicks.0": 1_000, "clicks.1": 99_000}
    pending = {"clicks": PendingRecords(records=100_000, parts=parts)}
    found = only(facts(details(first(pending=pending), second())))
    assert found.sentence.endswith("99,000 of them are in clicks.1")
    assert "minPartitions" in found.do


def test_nothing_is_said_of_what_waits_while_no_row_was_read() -> None:
    """There is no rate by which to tell how long it takes."""
    pending = {"clicks": PendingRecords(records=10**9, parts={"clicks.0": 10**9})}
    assert codes(facts(details(first(pending=pending, rows_per_second=0.0), second()))) == []


def test_a_source_that_never_delivered_says_so() -> None:
    found = only(facts(details(first(source_rows_ms={}), second())))
    assert "has delivered no row yet" in found.sentence
    assert found.since_ms == START


@pytest.mark.parametrize(
    "busy", [{"backpressured": True}, {"batch_since_ms": NOW - 20_000}, {"waits_for_space": "1 MiB are free in /x"}]
)
def test_a_source_is_not_blamed_while_its_task_cannot_read(busy: dict[str, Any]) -> None:
    known = facts(details(first(source_rows_ms={}, **busy), second()))
    assert "source-without-data" not in codes(known)


def two_sources(**metrics: Any) -> JobFacts:
    sources = tuple(
        Vertex(id=VertexId(name), source=Source(format="json"), watermark=GRAPH.vertices[0].watermark)
        for name in ("clicks", "refunds")
    )
    return facts(details(task(FIRST, sources, **metrics)))


def test_an_idle_input_that_holds_the_watermark_back_is_named() -> None:
    moved = NOW - 300_000
    known = two_sources(
        source_rows_ms={"clicks": NOW - 1_000, "refunds": moved}, watermark_moved_ms=moved, watermark_ms=NOW - 400_000
    )
    found = next(each for each in diagnose(known) if each.code == "watermark-held-back")
    assert "because refunds delivers no rows, while clicks does" in found.sentence
    assert (found.since_ms, found.severity) == (moved, Severity.WARNING)


def test_a_watermark_that_moves_is_not_held_back() -> None:
    known = two_sources(
        source_rows_ms={"clicks": NOW - 1_000, "refunds": NOW - 300_000}, watermark_moved_ms=NOW - 2_000
    )
    assert "watermark-held-back" not in codes(known)


def test_rows_that_are_dropped_as_late_are_counted() -> None:
    found = only(facts(details(first(), second(late_rows=5_000))))
    assert (found.code, found.figure) == ("late-rows", "10 %")


@pytest.mark.parametrize(
    ("action", "said", "advised"),
    [
        (OnBadRecord.DROP, "bad records are dropped", "a sink would have all"),
        (BadRecordSink(to=VertexId("bad")), "bad records go to bad, with what is wrong", "mend the vertex"),
    ],
)
def test_bad_records_are_counted(action: OnBadRecord | BadRecordSink, said: str, advised: str) -> None:
    """With where they go now. Those of a vertex that no longer looks for them are not spoken of (K7)."""
    looking = replace(first(), rows=RowCounts(read={"clicks": 50_000}, rejected={"clicks": 1_200}))
    assert diagnose(facts(details(looking, second()))) == ()
    vertices = tuple(replace(vertex, on_bad_record=action) for vertex in looking.task.vertices)
    found = only(facts(details(replace(looking, task=replace(looking.task, vertices=vertices)), second())))
    assert (found.code, found.figure, found.task) == ("bad-records", "1,200", FIRST)
    assert found.sentence == f"clicks has found 1,200 bad records since the job was submitted; {said}"
    assert advised in found.do


def test_a_table_whose_compaction_fails_is_named() -> None:
    """With the message of the library (K5)."""
    told = SinkCompactions(done=3, failed=2, files=40, into=2, last_ms=NOW - 60_000, failure="the catalog is away")
    found = only(facts(details(first(), second(compactions={"lake": told}))))
    assert (found.code, found.severity, found.figure) == ("compaction-fails", Severity.WARNING, "2 failed")
    assert found.sentence == "Compacting the table of sink lake fails: the catalog is away"
    well = SinkCompactions(done=4, failed=2, files=50, into=3, overtaken=9, last_ms=NOW - 60_000)
    assert diagnose(facts(details(first(), second(compactions={"lake": well})))) == ()
    late = SinkCompactions(done=4, overtaken=5, last_ms=NOW - 60_000)
    found = only(facts(details(first(), second(compactions={"lake": late}))))
    assert "is overtaken by commits that change its files" in found.sentence


# --- state ---

FORGETFUL = JobGraph(name="clicks", vertices=tuple(replace(v, watermark=None) for v in GRAPH.vertices))


def growing(rows: list[float], *, graph: JobGraph = FORGETFUL, state_rows: int = 40_000) -> JobFacts:
    job = details(first(watermark_ms=None), second(watermark_ms=None, state_rows=state_rows), graph=graph)
    return facts(job, tasks={SECOND: History(5_000, {"state_rows": rows})} if rows else {})


def test_state_that_grows_without_a_watermark_grows_without_end() -> None:
    found = only(growing([20_000 + 1_000 * i for i in range(20)]))
    assert (found.code, found.task, found.figure) == ("state-grows", SECOND, "+19,000 rows")
    assert "no vertex of the job has a watermark" in found.sentence


def test_state_of_as_many_keys_as_ever_does_not_grow() -> None:
    """A count by country keeps its countries."""
    assert codes(growing([40_000.0] * 20)) == []


def test_without_a_history_rows_that_nearly_all_stay_in_the_state_tell_it() -> None:
    assert codes(growing([])) == ["state-grows"]
    assert codes(growing([], state_rows=12_000)) == []


def test_state_with_a_watermark_may_grow() -> None:
    assert codes(growing([20_000 + 1_000 * i for i in range(20)], graph=GRAPH)) == []


# --- backpressure and disks ---


def test_backpressure_names_the_reader_that_is_slow() -> None:
    held = {"backpressured": True, "backpressured_ms": 3_000_000.0, "output_backlog": 64 * 2**20}
    found = only(facts(details(first(**held), second(batch_ms=900.0))))
    assert (found.code, found.task, found.figure) == ("backpressure", FIRST, "83 %")
    assert "waits 83 % of the time for task counts -> out, whose micro-batches take 900 ms" in found.sentence
    assert "64.0 MiB are in between" in found.sentence


def test_along_a_chain_of_waiting_tasks_the_last_one_is_to_blame() -> None:
    third = TaskId("report")
    held = {"backpressured": True, "backpressured_ms": 3_000_000.0}
    middle = task(SECOND, GRAPH.vertices[1:2], (third,), **held)
    last = task(third, GRAPH.vertices[2:], batch_ms=900.0)
    found = diagnose(facts(details(first(**held), middle, last)))
    assert [each.code for each in found] == ["backpressure", "backpressure"]
    assert all("for task out, whose" in each.sentence for each in found)


def test_the_history_tells_how_long_a_task_has_waited_lately() -> None:
    """A share since the start of an attempt of days would hide an hour."""
    held = {"backpressured": True, "backpressured_ms": 60_000.0}
    job = details(first(**held), second())
    assert codes(facts(job)) == []
    assert codes(facts(job, tasks={FIRST: History(5_000, {"backpressured": [0.9] * 60})})) == ["backpressure"]


def test_a_full_disk_comes_first_and_is_not_called_backpressure() -> None:
    space = "12 MiB are free in /var/lib, 256 MiB must stay free"
    held = {"backpressured": True, "backpressured_ms": 3_000_000.0, "waits_for_space": space}
    found = only(facts(details(first(**held), second())))
    assert (found.code, found.severity, found.figure) == ("disk-full", Severity.CRITICAL, "12 MiB")
    assert space in found.sentence


# --- checkpoints ---


def failing(cause: FailureCause, in_a_row: int = 1, **changes: Any) -> JobFacts:
    error = ErrorInfo(code="storage-full", message="no space is left", hint="free space")
    last = checkpoint(
        checkpoint_id=8,
        status=CheckpointStatus.FAILED,
        failed_ms=NOW - 2_000,
        cause=cause,
        error=error,
        failed_task=FIRST,
        tasks=(),
        **changes,
    )
    return facts(
        checkpoints=checkpoints(
            consecutive_failures=in_a_row, latest_failed=last, history=(last, checkpoint()), failed=in_a_row
        )
    )


@pytest.mark.parametrize(("in_a_row", "severity"), [(1, Severity.WARNING), (3, Severity.CRITICAL)])
def test_checkpoints_that_fail_are_told_with_their_reason(in_a_row: int, severity: Severity) -> None:
    found = only(failing(FailureCause.STORAGE, in_a_row))
    assert (found.code, found.severity, found.figure) == ("checkpoints-fail", severity, f"{in_a_row} in a row")
    assert "because of storage of task clicks: no space is left" in found.sentence
    assert found.do == "free space"
    assert found.since_ms == NOW - 2_000


def test_a_checkpoint_that_expired_names_those_it_waited_for() -> None:
    found = only(failing(FailureCause.EXPIRED, missing=(SECOND,)))
    assert "counts had not acknowledged it" in found.sentence


def test_a_slow_checkpoint_storage_is_told_with_its_rate() -> None:
    slow = replace(checkpoint().tasks[0], acknowledged_ms=NOW + 4_000, async_ms=8_000, bytes_uploaded=80 * 2**20)
    found = only(facts(checkpoints=checkpoints(latest_completed=checkpoint(tasks=(slow,)))))
    assert (found.code, found.figure) == ("bounded-by-checkpoint-storage", "89 %, 10.0 MiB/s")
    assert "Checkpoint 7 took 9 s of its interval of 10 s, and 8 s of that went into the storage" in found.sentence


def test_checkpoints_that_are_slow_for_another_reason_carry_the_advice() -> None:
    warning = "it took 12.0 s, longer than the interval of 10 s; 9.0 s of it for the links: put them elsewhere"
    found = only(facts(checkpoints=checkpoints(latest_completed=checkpoint(warning=warning))))
    assert (found.code, found.do) == ("checkpoints-slow", "put them elsewhere")


def test_a_storage_that_answers_slowly_is_found_by_its_small_requests() -> None:
    found = only(facts(checkpoints=checkpoints(calls={"metadata": Calls(count=10, ms=25_000)})))
    assert (found.code, found.figure) == ("storage-answers-slowly", "2.5 s")


def test_no_checkpoint_for_several_intervals_is_told_with_the_one_under_way() -> None:
    old = checkpoint(triggered_ms=NOW - 400_000, tasks=(replace(checkpoint().tasks[0], acknowledged_ms=NOW - 399_000),))
    pending = checkpoint(
        checkpoint_id=8, status=CheckpointStatus.IN_PROGRESS, triggered_ms=NOW - 300_000, missing=(SECOND,), tasks=()
    )
    found = only(facts(checkpoints=checkpoints(latest_completed=old, in_progress=(pending,))))
    assert found.code == "checkpoints-overdue"
    assert "number 8 has been under way for 5 min and waits for counts" in found.sentence


def test_damaged_checkpoints_are_named() -> None:
    damage = DamageRecord(checkpoint_id=5, found_ms=NOW)
    found = only(facts(checkpoints=checkpoints(damaged=(damage,))))
    assert (found.code, found.figure) == ("checkpoints-damaged", "1 damaged")


# --- failures ---


def test_restarts_by_one_and_the_same_error_are_critical() -> None:
    repeated = RepeatedFailures(failures=5, since_ms=NOW - 60_000, last=failure())
    found = only(facts(details(repeated=repeated, failures=tuple(failure() for _ in range(5)), restarts=5)))
    assert (found.code, found.severity, found.task) == ("restarts-repeatedly", Severity.CRITICAL, SECOND)
    assert "failed 5 times in a row, each time by the same error" in found.sentence
    assert "by user-code: ValueError: seven is poison" in found.sentence


def test_different_errors_in_a_row_are_told_apart() -> None:
    repeated = RepeatedFailures(failures=3, since_ms=NOW - 60_000, last=failure())
    others = (failure(), failure("KeyError: 'a'"), failure("OSError: b"))
    assert "by different errors" in only(facts(details(repeated=repeated, failures=others))).sentence


def test_an_error_that_comes_back_after_healthy_hours_is_found() -> None:
    """The streak of failures ends with each checkpoint, and the job is not marked."""
    again = tuple(failure(ago_ms=600_000 * (i + 2)) for i in range(3))
    found = only(facts(details(failures=again)))
    assert (found.code, found.figure) == ("same-error", "3 times")


def test_one_failure_is_news_for_a_while() -> None:
    found = only(facts(details(failures=(failure(),), restarts=1)))
    assert (found.code, found.severity) == ("restarted", Severity.INFO)
    assert codes(facts(details(failures=(failure(ago_ms=3_000_000),), restarts=1))) == []


def test_a_job_that_waits_for_its_restart_says_for_how_long() -> None:
    job = details(failures=(failure(),), status=JobStatus.RESTARTING, next_restart_ms=NOW + 20_000)
    assert "it starts again in 20 s" in only(facts(job)).sentence


@pytest.mark.parametrize("told", [True, False])
def test_a_lost_taskmanager_is_named_with_its_reason(told: bool) -> None:
    """Also if the ResourceManager does not know it any more, but only that it is not there."""
    gone = ResourceId("tm-gone")
    lost = failure("the TaskManager is lost", kind=Kind.CLUSTER, resource_id=gone)
    losses = (TaskManagerLoss(resource_id=gone, at_ms=NOW - 10_000, reason="killed by signal 9"),) if told else ()
    found = only(facts(details(failures=(lost,), restarts=1), resources=resources(losses=losses)))
    assert (found.code, found.severity, found.task_manager) == ("taskmanager-lost", Severity.INFO, gone)
    assert ("killed by signal 9" if told else "the TaskManager is lost") in found.sentence


def test_a_job_that_has_failed_for_good_says_why() -> None:
    job = details(status=JobStatus.FAILED, end_ms=NOW - 5_000, failures=(failure(),), restarts=3)
    found = only(facts(job))
    assert (found.code, found.severity, found.since_ms) == ("job-failed", Severity.CRITICAL, NOW - 5_000)
    assert summary(facts(job), (found,)) == "The job has failed."


# --- slots and TaskManagers ---


def test_a_job_without_slots_says_what_there_is() -> None:
    job = details(status=JobStatus.CREATED, waiting=("4 slots of one TaskManager are needed",))
    found = only(facts(job, resources=resources(slots_free=1)))
    assert (found.code, found.severity, found.figure) == ("too-few-slots", Severity.CRITICAL, "1 of 4 free")
    assert "4 slots of one TaskManager are needed; 1 of 4 slots of the cluster are free" in found.sentence


def test_a_job_that_waits_for_a_taskmanager_that_starts_is_not_told_to_get_more() -> None:
    """Its slots are counted as free, and cannot be had before its session is ready."""
    job = details(status=JobStatus.RESTARTING, waiting=("waiting for 1 TaskManager to become ready",))
    ready = task_manager()
    starting = replace(ready, report=replace(ready.report, session=SessionPhase.STARTING))
    [found] = (each for each in diagnose(facts(job, task_managers=(starting,))) if each.code == "too-few-slots")
    assert (found.severity, found.title) == (Severity.WARNING, "A TaskManager is not ready yet")
    assert found.sentence.endswith("waiting for 1 TaskManager to become ready")
    assert found.do.startswith("wait for the TaskManager that starts")


def test_the_log_of_a_process_is_not_announced_where_it_is_not_shown() -> None:
    assert line("its process was killed by SIGKILL; its log ends:\nready") == "its process was killed by SIGKILL"


def test_a_task_with_fewer_slots_than_it_wants_says_so() -> None:
    graph = replace(GRAPH, parallelism=8)
    found = diagnose(facts(details(graph=graph, waiting=("6 more slots",))))
    assert [each.code for each in found] == ["fewer-slots-than-wanted"] * 2
    assert found[0].figure == "2 of 8"


@pytest.mark.parametrize("silence", [3_000, 30_000])
def test_a_silent_taskmanager_is_found_before_it_counts_as_lost(silence: int) -> None:
    """The daemon says after what time: heartbeats are missing, and there is still time to look."""

    def heard(ago: int) -> JobFacts:
        return facts(task_managers=(task_manager(heard_ms=NOW - ago),), silent_after=silence)

    found = only(heard(silence))
    assert (found.code, found.task_manager) == ("taskmanager-unheard", TM)
    assert diagnose(heard(silence - 1)) == ()


@pytest.mark.parametrize(("interval", "timeout"), [(1.0, 5.0), (4.0, 5.0), (0.1, 50.0)])
def test_a_taskmanager_that_is_well_is_not_silent(interval: float, timeout: float) -> None:
    """It is heard of at every interval, whatever the two options are; a lost one is silent first."""
    assert interval < silent_after(interval, timeout) < timeout


# --- all together ---


def test_what_hurts_most_comes_first() -> None:
    space = "12 MiB are free in /var/lib, 256 MiB must stay free"
    repeated = RepeatedFailures(failures=5, since_ms=NOW - 60_000, last=failure())
    job = details(first(waits_for_space=space), second(late_rows=5_000), repeated=repeated)
    assert codes(facts(job)) == ["restarts-repeatedly", "disk-full", "late-rows"]


def test_every_finding_says_what_to_do_and_where_more_is() -> None:
    """A sentence without a next step helps nobody at night."""
    held = {"backpressured": True, "backpressured_ms": 3_000_000.0}
    for known in (
        failing(FailureCause.STORAGE),
        two_sources(source_rows_ms={"clicks": NOW}, watermark_moved_ms=START),
        facts(details(first(**held), second())),
        facts(details(failures=(failure(),))),
    ):
        for found in diagnose(known):
            assert found.do
            assert found.where.startswith("minflinkd ")
            assert found.job == JOB
            assert not found.sentence.endswith(".")


def test_an_input_that_reads_an_exchange_gets_the_advice_for_exchanges() -> None:
    vertices = (
        Vertex(
            id=VertexId("both"), inputs=(Input(id=VertexId("a"), exchange=True), Input(id=VertexId("b"), exchange=True))
        ),
    )
    times = {"a": NOW - 1_000}
    known = facts(details(task(FIRST, vertices, source_rows_ms=times, watermark_moved_ms=NOW - 600_000)))
    assert "give the input b an idle-timeout" in only(known).do
