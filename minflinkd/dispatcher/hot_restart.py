"""The way of a job from one version to the next (H1 - H10), from top to bottom.

    step                        refused, or ended, because
    1 the request  `restart`    conflict: another version is being checked; the job is being cancelled or has ended;
                                another restart is under way, other than a move
    2 the check    VersionCheck faults of the version itself; state that does not fit; no-session; quota-exceeded
    3 acceptance   `_accept`    conflict: as in 1, meanwhile; the storage does not take it
    --- HANDING_OVER is stored. The request is answered; the job shows the rest ---
    4 making way   `_make_way`  failed: no JobMaster, no slots, no checkpoint, or sinks that have not committed. Tasks
                                that only get other slots are left to the next JobMaster as they run (`_leaves_tasks`)
    --- STARTING is stored. The new version is current ---
    5 the switch   `_bring_up`
    6 the trial    `_trial`     turned back: the version fails, its JobMasters do, or it is not RUNNING in time
    --- COMPLETED is stored; or TURNING_BACK, then 4 and 5 with the version before it, and ROLLED_BACK ---
    7 the end      `_apply`

What follows from an event is decided in `versions.py` and stored by `version_record.py`. This file only does it, with
the job's JobMasters. A decision with a bug is not stored: the JobMaster falls, and the next one goes on from what is
stored, as after a crash of the daemon.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as copy
from functools import partial
from typing import Protocol

import structlog
from msgspec.structs import replace

from minflinkd.dispatcher import versions as v
from minflinkd.dispatcher.job_store import JobStore
from minflinkd.dispatcher.libraries import libraries
from minflinkd.dispatcher.quotas import QuotaBook, Share
from minflinkd.dispatcher.rescaling import rescaled
from minflinkd.dispatcher.version_check import VersionCheck
from minflinkd.dispatcher.version_record import Decision, VersionRecord
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.model import encode, version_of
from minflinkd.jobgraph.resources import profiles_of
from minflinkd.jobmaster.job import Succession
from minflinkd.jobmaster.job_master import JobMaster
from minflinkd.jobmaster.making_way import MakingWay
from minflinkd.jobmaster.scheduler.state import widths
from minflinkd.jobmaster.sinks import leaves_sinks
from minflinkd.jobmaster.succession import InheritedCheckpoints, NotStoodDown, PredecessorLeftovers, Trial
from minflinkd.rpc.jobs import HotRestartJob, RescaleJob, RestartAnswer, RestartState
from minflinkd.rpc.libraries import clash
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component, Crashed
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import Conflict, Consequence, ErrorInfo, MinflinkError, error_info, in_a_line
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.supervisor import Supervisor

log = structlog.get_logger(__name__)

HOPELESS = 3  # crashes of JobMasters of a version on trial, after which it is given up
MOVE_PATIENCE = 300.0  # seconds that a job waits for slots elsewhere: TaskManagers may have to start
RETRY_PAUSE = 0.5  # seconds before a version that must make way is asked again
MASTERLESS = 10.0  # seconds without a JobMaster, after which the job's checkpoints are looked up without one


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """What a new version of any job has to pass. Times in seconds, as they are configured now."""

    check: VersionCheck  # before it is accepted
    quotas: QuotaBook  # in which the job's owner must have room for it
    timeout: Callable[[], float]  # in which it must become RUNNING
    trial: Callable[[], float]  # after which it is accepted even if it has found no input; 0: never


class RestartedJob(Protocol):
    """The job whose versions are exchanged."""

    @property
    def job_id(self) -> JobId: ...

    @property
    def owner(self) -> str: ...

    def refuses_versions(self) -> str:
        """Return why the job takes no new version any more; empty if it does."""
        ...

    async def latest_stored(self) -> int:
        """Return the last complete checkpoint in the job's storage, or 0."""
        ...

    async def versions_changed(self, versions: v.Versions) -> None:
        """The versions have changed, or other artifacts are held than they need."""


class HotRestarts(Component):
    """Carries out the hot restarts of one job, one at a time."""

    def __init__(
        self,
        job: RestartedJob,
        versions: v.Versions,
        *,
        policy: RestartPolicy,
        masters: Supervisor[JobMaster],
        store: JobStore,
        clock: Clock,
    ) -> None:
        super().__init__(f"hot restarts of {job.job_id}")
        self._job = job
        self._job_id = job_id = job.job_id
        self._policy = policy
        self._masters = masters
        self._clock = clock
        self._record = VersionRecord(job_id, versions, store=store, clock=clock, publish=self._publish, fall=self._fall)
        self._checking = False
        self._reserving: MakingWay | None = None  # of the JobMaster while it waits for the next version's slots
        self._leftovers: PredecessorLeftovers | None = None
        self._interrupted = v.INTERRUPTED if versions.restart is not None else None  # why nobody carries it on
        self._crashes = 0  # of JobMasters, since the current version was brought up

    async def _start(self) -> None:
        """Give a version on trial under another daemon its full time again, even if no JobMaster of it comes up."""
        if (restart := self.versions.restart) is not None:
            self._watch(restart.number)

    @property
    def versions(self) -> v.Versions:
        """Return the versions that were stored last."""
        return self._record.versions

    # --- 1 the request, 2 the check ----------------------------------------------------------------------------------

    async def rescale(self, request: RescaleJob, *, reason: str = "") -> RestartAnswer:
        """Restart the running version with another parallelism. Raises what `restart` raises.

        `reason`: why the autoscaler asks for it.
        """
        try:
            graph = rescaled(self.versions.current.graph, request.parallelism, request.vertices, request.least)
        except InvalidJobGraph as error:
            return RestartAnswer(job_id=self._job_id, faults=error.faults)
        document = encode(replace(graph, restore=None))
        return await self.restart(
            HotRestartJob(job_id=self._job_id, document=document, dry_run=request.dry_run, replace=request.replace),
            rescales=True,
            reason=reason,
        )

    async def restart(self, request: HotRestartJob, *, rescales: bool = False, reason: str = "") -> RestartAnswer:
        """Check a new version, store it and begin its restart. A refused request has not touched anything.

        `rescales`: it is the running version, with other slots. `reason`: why the autoscaler asks for it.

        Raises Conflict, QuotaExceeded, NoSession, StorageError, Crashed.
        """
        self._refuse_before_the_check(request)
        self._checking, accepted = True, False
        try:
            master = self._masters.current
            latest = None if master is None else master.coordinator.latest()
            snapshots = () if latest is None else latest.tasks
            graph, answer = await self._policy.check.check(
                self._job_id, self.versions, snapshots, request, admit=partial(self._claim, keep=not request.dry_run)
            )
            if answer.faults or request.dry_run:
                return answer
            number = await self._accept(
                v.Requested(
                    graph,
                    allow_non_restored=request.allow_non_restored_state,
                    allow_changed=request.allow_changed_state,
                    final=not request.latest,
                    replace=request.replace,
                    rescales=rescales,
                    reason=reason,
                )
            )
            accepted = True
            return replace(answer, number=number)
        except InvalidJobGraph as error:
            return RestartAnswer(job_id=self._job_id, faults=error.faults)
        finally:
            self._checking = False
            self._policy.quotas.release(self._job_id)
            if not accepted:
                await self._publish(self.versions)  # the artifacts of the refused version are not needed

    def _claim(self, share: Share, *, keep: bool) -> None:
        """Raises QuotaExceeded if the job's owner, whoever asks, may not have this version beside the present one."""
        self._policy.quotas.claim(self._job_id, self._job.owner, share, keep=keep)

    async def move(self) -> int:
        """Restart the running version on other TaskManagers than the draining ones (A15b). Return the restart's number.

        The version is not checked again, since it is running. Raises Conflict, StorageError, Crashed.
        """
        self._refuse_before_the_check(HotRestartJob(job_id=self._job_id, document=b""), moves=True)
        current = self.versions.current
        return await self._accept(
            v.Requested(
                current.graph,
                allow_non_restored=current.allow_non_restored,
                allow_changed=current.allow_changed,
                moves=True,
            )
        )

    def _refuse_before_the_check(self, request: HotRestartJob, *, moves: bool = False) -> None:
        """Refuse at once what would be refused after the check, which may take seconds. Raises Conflict (H9)."""
        if self._checking:
            raise Conflict(f"another version of job {self._job_id} is being checked", hint="wait for its answer")
        if why := self._job.refuses_versions():
            raise Conflict(f"job {self._job_id} {why}")
        if not request.dry_run:
            v.refuse_beside_another(self.versions, replaces=request.replace, moves=moves)

    # --- 3 acceptance ------------------------------------------------------------------------------------------------

    async def _accept(self, event: v.Requested) -> int:
        """Accept a request and return its number. It is durable when this returns.

        Raises Conflict, StorageError, Crashed: then it was not accepted.
        """
        if self._job.refuses_versions():
            raise Conflict(f"job {self._job_id} was cancelled, or has ended, while its new version was checked")
        decision = await self._record.request(event)
        reach(CrashPoint.RESTART_ACCEPTED)
        number = decision.after.restarts
        log.info("hot restart accepted", job=self._job_id, number=number, replaces=decision.before.restart is not None)
        self._carry_out(decision)
        if decision.before.restart is not None and self._reserving is not None:
            with contextlib.suppress(Crashed):
                self._reserving.release()  # the replaced restart waits for its slots; this one asks for its own
        return number

    # --- 4 making way ------------------------------------------------------------------------------------------------

    async def _make_way(self, *, final: bool) -> None:
        """Have the current version stand down. The outcome concerns the restart that is under way by then."""
        try:
            event: v.StoodDown | v.NotStoodDown | None = await self._stand_down(final=final)
        except MinflinkError as error:
            event = v.NotStoodDown(error_info(error))
        if (restart := self.versions.restart) is None or event is None:
            return
        if isinstance(event, v.StoodDown):
            reach(CrashPoint.RESTART_STOPPED)
        elif restart.old is not None:
            log.warning("a version that failed does not make way yet", job=self._job_id, error=event.error.message)
            await self._clock.sleep(RETRY_PAUSE)
        while not await self._apply(restart.number, event):
            # Another request has replaced this one while the event waited to be stored.
            if (now := self.versions.restart) is None:
                return
            if not isinstance(event, v.StoodDown) or event.tasks_run:
                await self._make_way(final=now.final)
                return
            restart = now  # the tasks have stopped, for whichever version

    async def _stand_down(self, *, final: bool) -> v.StoodDown | None:
        """Stop the current version. None if nobody wants that any more. Raises NotStoodDown, StorageError, Crashed.

        A version that may stay stands down only if nothing is lost by it; one that failed stands down in any case.
        """
        master, restart = await self._master(), self.versions.restart
        if restart is None:
            return None
        may_stay = restart.old is None
        if master is None:
            if may_stay:
                raise NotStoodDown(
                    "the job has no JobMaster at present that could make way",
                    hint="`minflinkd info JOB` says why; ask again when it is up",
                )
            return v.StoodDown(await self._job.latest_stored())
        if may_stay:
            if (reserved := await self._reserve(master, restart)) is None:
                return None
            restart, final = reserved, reserved.final
            if restart.moves and not master.on_drained:
                master.making_way.release()
                raise NotStoodDown("the job need not move: none of its TaskManagers is draining any more")
            if self._leaves_tasks(master, restart):
                point = master.coordinator.latest()
                return v.StoodDown(0 if point is None else point.checkpoint_id, tasks_run=True)
        publish = may_stay and leaves_sinks(master.graph, restart.target)
        latest = await master.making_way.stand_down(final=final, publish=publish)
        return v.StoodDown(latest, published=master.making_way.published)

    def _leaves_tasks(self, master: JobMaster, restart: v.Restart) -> bool:
        """Whether the tasks run on, because the next version only wants other slots for them (R20)."""
        # A hot restart of the same file starts the tasks again. One that only turns the autoscaler off does not.
        wanted = restart.rescales or bool(restart.rescaled) or master.graph.autoscaler != restart.target.autoscaler
        same = wanted and version_of(master.graph) == version_of(restart.target)
        return same and not restart.moves and master.making_way.can_leave_tasks(chain(restart.target))

    async def _reserve(self, master: JobMaster, restart: v.Restart) -> v.Restart | None:
        """Wait for the slots of the next version. Return the restart whose slots are there.

        This is another restart if a request has replaced the given one meanwhile; that restart has its own slots and
        its own patience. Return None if no restart is under way any more. Raises NotStoodDown, Crashed.
        """
        self._reserving = master.making_way
        try:
            while True:
                wanted = libraries(restart.target)
                slots = widths(chain(restart.target))
                profiles = profiles_of(restart.target, slots)
                leaves = restart.moves or bool(clash(libraries(master.graph), wanted))
                leaves = leaves or profiles != profiles_of(master.graph, slots)
                patience = MOVE_PATIENCE if leaves else self._policy.timeout()
                try:
                    await master.making_way.reserve(slots, patience, wanted, profiles)
                except NotStoodDown:
                    if not self._is_replaced(restart):
                        raise
                if not self._is_replaced(restart):
                    return restart
                if (now := self.versions.restart) is None:
                    return None
                restart = now
        finally:
            self._reserving = None

    def _is_replaced(self, restart: v.Restart) -> bool:
        now = self.versions.restart
        return now is None or now.number != restart.number

    async def _master(self) -> JobMaster | None:
        """Return the JobMaster that is up. If the current version must make way, wait a while for one to come up."""
        deadline = self._clock.monotonic() + MASTERLESS
        while self._masters.current is None and (restart := self.versions.restart) is not None:
            if restart.old is None or self._clock.monotonic() >= deadline:
                break
            await self._clock.sleep(RETRY_PAUSE / 5)
        return self._masters.current

    # --- 5 the switch ------------------------------------------------------------------------------------------------

    def _bring_up(self, *, tasks_run: bool) -> None:
        """Replace the JobMaster, which has stood down, by one of the version that is current now.

        If `tasks_run`, it has not stopped its tasks, and the next one adopts them.
        """
        master, restart = self._masters.current, self.versions.restart
        self._crashes = 0
        self._leftovers = None if master is None else master.leftovers(tasks_run=tasks_run)
        self._masters.succeed()
        if restart is not None:
            self._watch(restart.number)

    async def settled(self) -> None:
        """Return when every decision is stored. Until then it is open which version the next JobMaster runs."""
        await self._record.settled()

    def succession(self) -> Succession:
        """Return what the JobMaster being made now takes over. The leftovers are given to one JobMaster only.

        Without them, an earlier JobMaster may not have stopped its tasks.
        """
        current, leftovers = self.versions.current, self._leftovers
        self._leftovers = None
        tasks_run = leftovers is not None and leftovers.tasks_run
        inherited = InheritedCheckpoints(
            current.base,
            current.allow_non_restored,
            current.allow_changed,
            sinks=self.versions.sinks,
            published=current.base_published,
        )
        return Succession(
            inherited=inherited,
            leftovers=leftovers or PredecessorLeftovers(),
            trial=self._trial(tasks_run=tasks_run),
            preceded=leftovers is None or tasks_run,
            died_making_way=leftovers is None and self.versions.restart is not None,
        )

    # --- 6 the trial -------------------------------------------------------------------------------------------------

    def _trial(self, *, tasks_run: bool) -> Trial | None:
        """Return what the next JobMaster has to report. None if its version is not on trial."""
        restart = self.versions.restart
        if restart is None or restart.phase is RestartState.HANDING_OVER:
            return None
        number = restart.number
        return Trial(
            running=lambda: self._soon(number, v.Running()),
            idle=lambda: self._soon(number, v.Idle()),
            proven=lambda checkpoint_id: self._soon(number, v.Proven(checkpoint_id)),
            disproved=lambda error: self._soon(number, v.Disproved(error)),
            timeout=self._policy.timeout(),
            # A version that only moves, or gets other slots, has already processed rows.
            left=(lambda: 0.0) if restart.moves or tasks_run else partial(self._left, restart.requested_ms),
        )

    def _left(self, since_ms: int) -> float | None:
        """Seconds left in a trial without input, even if it began under another daemon. None: for ever."""
        patience = self._policy.trial()
        return None if patience <= 0 else max(0.0, patience - (self._clock.epoch_ms() - since_ms) / 1000)

    def up(self, master: JobMaster) -> None:
        """A JobMaster of the current version has come up, for whatever reason."""
        interrupted, self._interrupted = self._interrupted, None
        if (restart := self.versions.restart) is None:
            return
        point = master.coordinator.latest()
        latest = 0 if point is None else point.checkpoint_id
        has_own = latest > self.versions.current.base
        proven = has_own and restart.unproven
        if proven:
            master.trust()
        elif restart.phase is RestartState.TURNING_BACK and not has_own:  # it is asked to make way, but may run first
            with contextlib.suppress(Crashed):
                master.making_way.begin()
        if interrupted is not None:
            self._soon(restart.number, v.Recovered(latest, interrupted))
        elif proven:
            self._soon(restart.number, v.Proven(latest))

    def down(self, error: ErrorInfo) -> None:
        """A JobMaster of the current version crashed, or did not come up, because of a permanent fault."""
        self._crashes += 1
        if self._crashes >= HOPELESS and (restart := self.versions.restart) is not None:
            self._soon(restart.number, v.Disproved(error))

    def _watch(self, number: int) -> None:
        self.tasks.job(f"deadline of hot restart {number}", self._deadline(number))

    async def _deadline(self, number: int) -> None:
        """H7: Fail the restart if the new version is not RUNNING in time."""
        seconds = self._policy.timeout()
        await self._clock.sleep(seconds)
        error = ErrorInfo(
            code="hot-restart-timeout",
            message=f"the new version is not RUNNING within {seconds:g} s (hot-restart.timeout)",
            hint="`minflinkd info JOB` says what it waited for",
        )
        await self._apply(number, v.Overdue(error))

    # --- 7 the end ---------------------------------------------------------------------------------------------------

    def abandon(self, *, finished: bool = False) -> None:
        """The job is cancelled or has ended."""
        with contextlib.suppress(Crashed):  # the job ends all the same
            self._record.end(finished=finished)

    # --- what every step does: an event, a decision that is stored, its commands -------------------------------------

    def _soon(self, number: int, event: v.Event) -> None:
        async def apply() -> None:
            await self._apply(number, event)

        self.tasks.job(f"{type(event).__name__} of hot restart {number}", apply())

    async def _apply(self, number: int, event: v.Event) -> bool:
        """Handle an event of restart `number`. Return False, and change nothing, unless this restart is under way."""
        if isinstance(event, v.Proven):
            reach(CrashPoint.RESTART_PROVEN)
        try:
            decision = await self._record.apply(number, self._dated(event))
        except Crashed:  # logged where it happened
            return True
        if decision is None or (decision.after is decision.before and not decision.commands):
            self._release(event)
            return decision is not None
        if {v.Command.BRING_UP, v.Command.TAKE_OVER} & set(decision.commands):
            reach(CrashPoint.RESTART_SWITCHED)
        elif isinstance(event, v.Running):
            reach(CrashPoint.RESTART_RUNNING)
        self._carry_out(decision)
        if decision.after.restart is None:
            await self._record.tidy()
        return True

    def _release(self, event: v.Event) -> None:
        """A version that failed before it was known to be proven is a version like any other: let it go on."""
        master = self._masters.current
        if isinstance(event, v.Disproved) and self.versions.restart is None and master is not None:
            master.making_way.go_on()

    def _carry_out(self, decision: Decision) -> None:
        for command in decision.commands:
            match command:
                case v.Command.TAKE_CHECKPOINT_AND_STAND_DOWN:
                    self.tasks.job("stand down after a checkpoint", self._make_way(final=True))
                case v.Command.STAND_DOWN:
                    self.tasks.job("stand down", self._make_way(final=False))
                case v.Command.BRING_UP | v.Command.TAKE_OVER:
                    self._bring_up(tasks_run=command is v.Command.TAKE_OVER)
                case v.Command.GO_ON:
                    if (master := self._masters.current) is not None:
                        master.making_way.go_on()

    def _dated(self, event: v.Event) -> v.Event:
        """Add when the phases until now ended (H10)."""
        if not isinstance(event, v.Running | v.Proven) or (master := self._masters.current) is None:
            return event
        return copy(event, milestones=master.milestones())

    async def _publish(self, versions: v.Versions) -> None:
        """The job goes on from these versions, and holds their artifacts."""
        try:
            await self._job.versions_changed(versions)
        except MinflinkError as error:  # it holds more than it needs, until the next change
            log.warning("artifacts of an earlier version may still be held", job=self._job_id, error=str(error))

    def _fall(self, error: Exception) -> Crashed:
        """A decision has a bug. The JobMaster falls with it: it may have stood down for what was to follow.

        The next JobMaster says how far the job has got (`up`), as after a crash of the daemon.
        """
        log.error("a component crashed", component=self.name, error=str(error), exc_info=error)
        if (restart := self.versions.restart) is not None:
            self._watch(restart.number)
            self._interrupted = ErrorInfo(
                code=v.INTERRUPTED.code,
                message=f"a bug in the daemon: {in_a_line(str(error))}",
                consequence=Consequence.RETRYABLE,
                hint="the daemon's log has what led to it; please report it",
            )
        if (master := self._masters.current) is not None:
            master.crash(error)
        return Crashed(f"{self.name} crashed: {in_a_line(str(error))}", hint="the job goes on; ask again")
