"""The hot restarts of one job (H1 - H10): stores what `versions` decides, and carries it out with the job's JobMasters.

A decision is stored before anything follows from it. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from minflinkd.dispatcher import versions as v
from minflinkd.dispatcher.job_results import until_done
from minflinkd.dispatcher.job_store import JobStore
from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.jobmaster.job_state import widths
from minflinkd.jobmaster.sinks import leaves_sinks
from minflinkd.jobmaster.succession import Estate, Heritage, Trial
from minflinkd.rpc.jobs import HotRestart
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component, Crashed
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import Consequence, ErrorInfo, MinflinkError, error_info
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.supervisor import Supervisor

log = structlog.get_logger(__name__)

HOPELESS = 3  # crashes of JobMasters of a version on trial, after which it is given up
RETRY_PAUSE = 0.5  # seconds before a version that must make way is asked again
MASTERLESS = 10.0  # seconds without a JobMaster, after which the job's checkpoints are looked up without one

_NO_MASTER = ErrorInfo(
    code="hot-restart-failed",
    message="the job has no JobMaster at present that could make way",
    consequence=Consequence.RETRYABLE,
    hint="`minflinkd info JOB` says why; ask again when it is up",
)


class Restarting(Component):
    """Carries out the hot restarts of a job. `latest_stored`: the last complete checkpoint in the job's storage, or 0.

    `on_change`: the current version, or the versions to keep, have changed. `timeout`: seconds in which a new version
    must become RUNNING. `patience`: seconds after which a version without input is accepted anyway; 0: never.
    """

    def __init__(
        self,
        job_id: JobId,
        versions: v.Versions,
        *,
        masters: Supervisor[JobMaster],
        store: JobStore,
        clock: Clock,
        timeout: Callable[[], float],
        patience: Callable[[], float],
        latest_stored: Callable[[], Awaitable[int]],
        on_change: Callable[[v.Versions], Awaitable[None]],
    ) -> None:
        super().__init__(f"hot restarts of {job_id}")
        self.versions = versions
        self._job_id = job_id
        self._masters = masters
        self._store = store
        self._clock = clock
        self._timeout = timeout
        self._patience = patience
        self._latest_stored = latest_stored
        self._on_change = on_change
        self._turn = asyncio.Lock()
        self._written: int | None = None  # number of the last record begun; None: not looked up yet
        self._estate: Estate | None = None
        self._interrupted = versions.restart is not None  # begun under another daemon, and not settled yet
        self._crashes = 0  # of JobMasters, since the current version was brought up

    async def _start(self) -> None:
        """Give a version on trial under another daemon its full time again, even if no JobMaster of it comes up."""
        if (restart := self.versions.restart) is not None:
            self._watch(restart.number)

    # --- for the JobMasters ----------------------------------------------------------------------------------------

    def heritage(self) -> Heritage:
        current = self.versions.current
        published = current.base_published
        return Heritage(
            current.base,
            current.allow_non_restored,
            current.allow_changed,
            sinks=self.versions.sinks,
            published=published,
        )

    def take_estate(self) -> Estate | None:
        """Return the estate of the JobMaster that stood down for the one being made now."""
        estate, self._estate = self._estate, None
        return estate

    def trial(self) -> Trial | None:
        restart = self.versions.restart
        if restart is None or restart.phase is v.Phase.HANDING_OVER:
            return None
        number = restart.number
        return Trial(
            running=lambda: self._soon(number, v.Running()),
            idle=lambda: self._soon(number, v.Idle()),
            proven=lambda checkpoint_id: self._soon(number, v.Proven(checkpoint_id)),
            disproved=lambda error: self._soon(number, v.Disproved(error)),
            timeout=self._timeout(),
            left=partial(self._left, restart.requested_ms),
        )

    def _left(self, since_ms: int) -> float | None:
        """Seconds left in a trial without input, even if it began under another daemon. None: for ever."""
        patience = self._patience()
        return None if patience <= 0 else max(0.0, patience - (self._clock.epoch_ms() - since_ms) / 1000)

    def up(self, master: JobMaster) -> None:
        """A JobMaster of the current version has come up, for whatever reason."""
        point, restart = master.coordinator.latest(), self.versions.restart
        latest = 0 if point is None else point.checkpoint_id
        if restart is None:
            return
        has_own = latest > self.versions.current.base
        proven = has_own and restart.unproven
        if proven:
            master.trust()
        elif restart.phase is v.Phase.TURNING_BACK and not has_own:  # it is asked to make way, but may run first
            with contextlib.suppress(Crashed):
                master.making_way.begin()
        if self._interrupted:
            self._interrupted = False
            self._soon(restart.number, v.Recovered(latest))
        elif proven:
            self._soon(restart.number, v.Proven(latest))

    def down(self, error: ErrorInfo) -> None:
        """A JobMaster of the current version crashed, or did not come up, because of a permanent fault."""
        self._crashes += 1
        if self._crashes >= HOPELESS and (restart := self.versions.restart) is not None:
            self._soon(restart.number, v.Disproved(error))

    async def decided(self) -> None:
        """Return when every decision is stored. Until then it is open which version is current."""
        async with self._turn:
            pass

    # --- requests --------------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> bool:
        """Whether another request is refused unless it replaces the restart under way (H9)."""
        restart = self.versions.restart
        return restart is not None and restart.phase is not v.Phase.ON_TRIAL

    def shown(self) -> tuple[HotRestart, ...]:
        return v.shown(self.versions)

    async def request(self, event: v.Requested) -> int:
        """Accept a request and return its number. It is durable when this returns.

        Raises Conflict (H9), StorageError: then it was not accepted.
        """
        async with self._turn:
            state, command = v.step(self.versions, event, self._clock.epoch_ms())
            await self._write(state)
            await self._settle(state)
        reach(CrashPoint.RESTART_ACCEPTED)
        log.info("hot restart accepted", job=self._job_id, number=state.restarts, replaces=command is None)
        self._carry_out(command)
        return state.restarts

    def abandon(self, *, finished: bool = False) -> None:
        """The job is cancelled or has ended. That is stored, so this need not be."""
        self.versions, _ = v.step(self.versions, v.Ended(finished), self._clock.epoch_ms())

    # --- the machine and the world ---------------------------------------------------------------------------------

    def _soon(self, number: int, event: v.Event) -> None:
        self.tasks.job(f"{type(event).__name__} of hot restart {number}", self._feed(number, event))

    async def _feed(self, number: int, event: v.Event) -> None:
        """Handle an event of restart `number`. It changes nothing unless this restart is under way."""
        async with self._turn:
            before = self.versions
            if before.restart is None or before.restart.number != number:
                state, command = before, None
            else:
                state, command = v.step(before, self._dated(event), self._clock.epoch_ms())
            if state is before and command is None:
                self._release(event)
                return
            if v.durable(state) != v.durable(before):
                await until_done(self._clock, f"hot restart {number} of {self._job_id}", partial(self._write, state))
            await self._settle(state)
        self._tell(before, state)
        if command is v.Command.BRING_UP:
            reach(CrashPoint.RESTART_SWITCHED)
        elif isinstance(event, v.Running):
            reach(CrashPoint.RESTART_RUNNING)
        self._carry_out(command)
        if state.restart is None and self._written is not None:
            await self._tidy(self._written)

    def _dated(self, event: v.Event) -> v.Event:
        master = self._masters.current
        milestones = {} if master is None else master.milestones()
        match event:
            case v.Running():
                return v.Running(milestones)
            case v.Proven(checkpoint_id):
                reach(CrashPoint.RESTART_PROVEN)
                return v.Proven(checkpoint_id, milestones)
            case _:
                return event

    def _release(self, event: v.Event) -> None:
        """A version that failed before it was known to be proven is a version like any other: let it go on."""
        master = self._masters.current
        if isinstance(event, v.Disproved) and self.versions.restart is None and master is not None:
            master.making_way.go_on()

    async def _write(self, state: v.Versions) -> None:
        """Write under a new number. An earlier write with an unknown outcome no longer counts after that."""
        if self._written is None:
            self._written = await self._store.last_version_number(self._job_id)
        self._written += 1
        await self._store.put_versions(self._job_id, self._written, state)

    async def _settle(self, state: v.Versions) -> None:
        v.check_invariants(state)
        self.versions = state
        await self._on_change(state)

    async def _tidy(self, number: int) -> None:
        try:
            await self._store.drop_versions(self._job_id, number)
        except MinflinkError as error:  # the next restart drops them, or the job's end
            log.info("records of versions are left", job=self._job_id, error=str(error))

    def _tell(self, before: v.Versions, state: v.Versions) -> None:
        ended = state.past[-1] if state.past and state.restart is None and before.restart is not None else None
        if ended is not None:
            error = "" if ended.error is None else ended.error.message
            log.info("hot restart ended", job=self._job_id, number=ended.number, state=ended.state.value, error=error)
        elif state.restart is not None:
            log.info("hot restart", job=self._job_id, number=state.restart.number, phase=state.restart.phase.value)

    # --- commands --------------------------------------------------------------------------------------------------

    def _carry_out(self, command: v.Command | None) -> None:
        restart, master = self.versions.restart, self._masters.current
        match command:
            case v.Command.STAND_DOWN | v.Command.TAKE_CHECKPOINT_AND_STAND_DOWN:
                assert restart is not None
                final = command is v.Command.TAKE_CHECKPOINT_AND_STAND_DOWN
                self.tasks.job("stand down", self._stand_down(final=final))
            case v.Command.BRING_UP:
                self._crashes = 0
                self._estate = None if master is None else master.estate()
                self._masters.succeed()
                if restart is not None:
                    self._watch(restart.number)
            case v.Command.GO_ON:
                if master is not None:
                    master.making_way.go_on()
            case None:
                pass

    async def _stand_down(self, *, final: bool) -> None:
        """Ask the current version to make way. The outcome concerns the restart that is under way by then."""
        event = await self._outcome_of_standing_down(final=final)
        if (restart := self.versions.restart) is None:
            return
        if isinstance(event, v.StoodDown):
            reach(CrashPoint.RESTART_STOPPED)
        elif restart.old is not None:
            log.warning("a version that failed does not make way yet", job=self._job_id, error=event.error.message)
            await self._clock.sleep(RETRY_PAUSE)
        await self._feed(restart.number, event)

    async def _outcome_of_standing_down(self, *, final: bool) -> v.StoodDown | v.NotStoodDown:
        try:
            master, restart = await self._master(), self.versions.restart
            if master is not None:
                if restart is not None and restart.old is None:
                    await master.making_way.reserve(widths(restart.target), self._timeout())
                publish = restart is not None and restart.old is None and leaves_sinks(master.graph, restart.target)
                latest = await master.making_way.stand_down(final=final, publish=publish)
                return v.StoodDown(latest, published=master.making_way.published)
            if restart is None or restart.old is None:
                return v.NotStoodDown(_NO_MASTER)
            return v.StoodDown(await self._latest_stored())
        except MinflinkError as error:
            return v.NotStoodDown(error_info(error))

    async def _master(self) -> JobMaster | None:
        """Return the JobMaster that is up. If the current version must make way, wait a while for one to come up."""
        restart, deadline = self.versions.restart, self._clock.monotonic() + MASTERLESS
        while self._masters.current is None and restart is not None and restart.old is not None:
            if self._clock.monotonic() >= deadline:
                break
            await self._clock.sleep(RETRY_PAUSE / 5)
        return self._masters.current

    def _watch(self, number: int) -> None:
        self.tasks.job(f"deadline of hot restart {number}", self._deadline(number))

    async def _deadline(self, number: int) -> None:
        """H7: Fail the restart if the new version is not RUNNING in time."""
        seconds = self._timeout()
        await self._clock.sleep(seconds)
        error = ErrorInfo(
            code="hot-restart-timeout",
            message=f"the new version is not RUNNING within {seconds:g} s (hot-restart.timeout)",
            hint="`minflinkd info JOB` says what it waited for",
        )
        await self._feed(number, v.Overdue(error))
