"""Moves jobs away from draining TaskManagers, when the ResourceManager asks for it (A15b)."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from minflinkd.dispatcher import move_decisions
from minflinkd.dispatcher.job_run import JobRun
from minflinkd.dispatcher.move_decisions import Move, Situation
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.network import Mailbox
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)


class JobMoves:
    """`run_of` returns the run of a job that has not ended.

    Nothing here is stored: under the next daemon the ResourceManager asks again.
    """

    def __init__(self, *, run_of: Callable[[JobId], JobRun | None], tasks: TaskOwner, clock: Clock) -> None:
        self._run_of = run_of
        self._tasks = tasks
        self._clock = clock
        self._moves: dict[JobId, Move] = {}
        self._asking: set[JobId] = set()

    def attach(self, mailbox: Mailbox) -> None:
        mailbox.on(m.MoveJobs, self._move)

    async def _move(self, request: m.MoveJobs) -> m.JobsHeld:
        """Begin the moves that can begin now, and answer why the jobs are still there."""
        self._moves = {job_id: self._looked_after(job_id) for job_id in request.jobs}
        return m.JobsHeld(why={job_id: move.why for job_id, move in self._moves.items()})

    def _looked_after(self, job_id: JobId) -> Move:
        move, run = self._moves.get(job_id, Move()), self._run_of(job_id)
        if run is None:
            return Move(why="it has ended, or its record cannot be read")
        if job_id in self._asking:
            return move
        move, begin = move_decisions.decide(move, _situation(run), self._clock.monotonic())
        if begin:
            self._asking.add(job_id)
            self._tasks.job(f"move of {job_id}", self._begin(run))
        return move

    async def _begin(self, run: JobRun) -> None:
        job_id = run.job_id
        try:
            number = await run.hot_restarts.move()
        except MinflinkError as error:
            log.warning("a job does not leave its TaskManager yet", job=job_id, error=str(error))
            self._moves[job_id] = move_decisions.failed(
                self._moves.get(job_id, Move()), error.message, self._clock.monotonic()
            )
        else:
            log.info("a job leaves a draining TaskManager", job=job_id, restart=number)
            self._moves[job_id] = move_decisions.begun(self._moves.get(job_id, Move()), number)
        finally:
            self._asking.discard(job_id)


def _situation(run: JobRun) -> Situation:
    master = run.master
    return Situation(
        status=JobStatus.INITIALIZING if master is None else master.status,
        mode=run.stored.graph.mode,
        on_drained=master is not None and master.on_drained,
        restarts=tuple(sorted(run.details().hot_restarts, key=lambda restart: restart.number)),
        waits_for="" if master is None else master.waits_for,
        refuses=run.refuses_versions(),
    )
