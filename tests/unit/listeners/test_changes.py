"""Which changes of jobs listeners are told of, and what they learn (E19b)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from minflinkd.listeners.changes import RECENT, Seen, changes, look
from minflinkd.listeners.interface import ChangeKind
from minflinkd.rpc.jobs import JobOverview, JobStatus
from minflinkd.runtime.ids import JobId
from tests.unit.rest.parties import FAILURE, details

NOW = 1_760_000_000_000
A, B = JobId("a" * 32), JobId("b" * 32)


def job(job_id: JobId, status: JobStatus, *, ended_ago: int = 1000) -> JobOverview:
    return JobOverview(
        job_id=job_id,
        name="clicks",
        status=status,
        start_ms=NOW - 10_000,
        end_ms=NOW - ended_ago if status.terminal else -1,
        last_modification_ms=NOW,
        tasks={},
    )


def told(looks: Iterable[list[JobOverview]]) -> list[tuple[JobId, ChangeKind]]:
    seen, found = Seen(), []
    for jobs in looks:
        result = look(seen, jobs, NOW)
        seen = result.seen
        found += [(job_id, kind) for job_id, kinds in result.news for kind in kinds]
    return found


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (JobStatus.FINISHED, ChangeKind.COMPLETED),
        (JobStatus.FAILED, ChangeKind.FAILED),
        (JobStatus.CANCELED, ChangeKind.CANCELED),
    ],
)
def test_a_job_starts_and_ends_once(status: JobStatus, kind: ChangeKind) -> None:
    running = [job(A, JobStatus.RUNNING)]
    ended = [job(A, status)]
    assert told([[], running, running, ended, ended]) == [(A, ChangeKind.STARTED), (A, kind)]


def test_a_job_that_ends_between_two_looks_has_started_too() -> None:
    assert told([[], [job(A, JobStatus.FAILED)]]) == [(A, ChangeKind.STARTED), (A, ChangeKind.FAILED)]


def test_restarts_are_no_changes() -> None:
    """A job that restarts is the same run: OpenLineage knows one start and one end."""
    looks = [[job(A, status)] for status in (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.RUNNING)]
    assert told(looks) == [(A, ChangeKind.STARTED)]


def test_at_its_first_look_a_daemon_tells_what_its_predecessor_may_not_have_told() -> None:
    lately, long_ago = job(A, JobStatus.FINISHED), job(B, JobStatus.FINISHED, ended_ago=RECENT + 1)
    assert told([[lately, long_ago]]) == [(A, ChangeKind.STARTED), (A, ChangeKind.COMPLETED)]


@given(
    st.lists(
        st.dictionaries(st.sampled_from([A, B]), st.sampled_from(JobStatus), max_size=2),
        max_size=8,
    )
)
def test_no_end_is_told_without_a_start_before_it_and_no_end_twice(looks: list[dict[JobId, JobStatus]]) -> None:
    """Whatever the jobs do, as long as an ended one stays as it is."""
    ended: dict[JobId, JobStatus] = {}
    sane = []
    for each in looks:
        each = {job_id: ended.get(job_id, status) for job_id, status in {**each, **ended}.items()}
        ended |= {job_id: status for job_id, status in each.items() if status.terminal}
        sane.append([job(job_id, status) for job_id, status in each.items()])
    found = told([[], *sane])
    for job_id in (A, B):
        kinds = [kind for which, kind in found if which == job_id]
        assert sum(kind is not ChangeKind.STARTED for kind in kinds) <= 1
        assert not kinds or kinds[0] is ChangeKind.STARTED


def test_a_change_carries_inputs_outputs_and_the_error() -> None:
    failed = details(status=JobStatus.FAILED, failures=(FAILURE,))
    started, ended = changes(replace(failed, owner="ada"), (ChangeKind.STARTED, ChangeKind.FAILED))
    assert [source.path for source in started.inputs] == ["/data/flights"]
    assert [sink.path for sink in started.outputs] == ["/data/out"]
    assert (started.error, started.owner) == (None, "ada")
    assert ended.error == FAILURE.error
    assert ended.at_ms == failed.end_ms
    assert "SELECT * FROM flights" in ended.sql


def test_secrets_in_options_are_masked() -> None:
    job_details = details()
    source = job_details.graph.vertices[0].source
    assert source is not None
    vertex = replace(job_details.graph.vertices[0], source=replace(source, options={"password": "hunter2", "x": "1"}))
    graph = replace(job_details.graph, vertices=(vertex, *job_details.graph.vertices[1:]))
    [change] = changes(replace(job_details, graph=graph), (ChangeKind.STARTED,))
    assert "hunter2" not in str(change)
    assert change.inputs[0].options["x"] == "1"
