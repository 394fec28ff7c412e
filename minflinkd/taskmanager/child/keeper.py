"""Keeps one warm session child under a supervisor: starts it, watches it, replaces it when it is lost."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import structlog
from msgspec.structs import replace as copy

from minflinkd.rpc.messages import SessionPhase
from minflinkd.rpc.network import Mailbox
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child import start as session_start
from minflinkd.taskmanager.child.age import Figures, aged, sensible
from minflinkd.taskmanager.child.figures import figures_together, work_of, worker_metrics
from minflinkd.taskmanager.child.garbage import CollectionShare
from minflinkd.taskmanager.child.health import Health, Limits, heard, observed, unwatched, verdict
from minflinkd.taskmanager.child.process import SessionProcess
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.taskmanager.child.start_failure import printed_since, start_failure

log = structlog.get_logger(__name__)

WATCH_INTERVAL = 0.5  # seconds between two checks of the process states
LATE = 5.0  # seconds between two checks: if longer, the supervisor itself did not run
PING_INTERVAL = 1.0
START_INTERVAL = 1.0  # seconds between two checks of a start's progress
AGE_INTERVAL = 5.0
LAST_WORD = 0.1  # seconds for the exit code of a child that ends by itself; its tasks restart that much later
GONE_TIMEOUT = 30.0  # seconds; a killed child ends sooner
PAUSE_AFTER_FAILED_START = 2.0  # seconds; doubled with every further failed start
LONGEST_PAUSE = 60.0


class SessionListener(Protocol):
    """Receives changes of the session, on the event loop."""

    def session_changed(self, phase: SessionPhase) -> None:
        """The phase has changed, or `SessionKeeper.aged` has."""
        ...

    def session_lost(self, generation: int, reason: str) -> None:
        """The child is lost: it was killed with all its processes, and does nothing any more."""
        ...

    def session_gone(self) -> None:
        """The processes of the lost child are gone, so nobody has its files open any more."""
        ...

    def task_failed(self, generation: int, notice: sp.TaskFailed) -> None: ...

    def batch_finished(self, generation: int, notice: sp.BatchFinished) -> None: ...

    def input_ended(self, generation: int, notice: sp.InputEnded) -> None: ...


class SessionKeeper(Component):
    """`session()` returns the living, warm child. Its loss is reported once, when all its processes were killed.

    Its tasks can then start elsewhere. A second report follows when the processes are gone.

    `on_start_failed` is called with the reason why a child never became ready. `start_error` has it until one is ready.
    """

    def __init__(
        self,
        *,
        config: sp.SessionConfig,
        limits: Limits,
        bounds: Figures,
        start_timeout: float,
        clock: Clock,
        listener: Callable[[], SessionListener],
        on_start_failed: Callable[[str], None] = lambda _: None,
        command: Sequence[str] = sp.COMMAND,
    ) -> None:
        super().__init__("session keeper")
        self.start_error = ""
        self.slow = ""  # a warning about a start that takes too long
        self.steps = 0  # steps of progress that starts have made so far
        self.aged = ""  # why the present child should be replaced when idle (R6a)
        self.phase = SessionPhase.STARTING
        self.first_ready = asyncio.Event()  # set once a session has been ready
        self.generation = 0
        self.phases: dict[str, float] = {}  # seconds of each phase of the last start
        self.jvm: dict[str, float] = {}  # what the present JVM uses, as the child has said last
        self.workers: dict[str, float] = {}  # what the processes use that this JVM has started
        self._config = config
        self._limits = limits
        self._bounds = bounds
        self._start_timeout = start_timeout
        self._given_up = 0  # starts in a row that were given up because they took too long
        self._clock = clock
        self._listener = listener
        self._on_start_failed = on_start_failed
        self._command = command
        self._child: SessionProcess | None = None
        self._ready = asyncio.Event()
        self._condemned: asyncio.Future[str] | None = None
        self._renewing = False
        self._turn = asyncio.Condition()
        self._ended = 0  # the last generation that is completely gone

    def session(self) -> SessionProcess:
        """Return the session. Raises SessionLost while there is none."""
        if self._child is None or self.phase is not SessionPhase.READY:
            raise SessionLost("the session is not ready", hint="the TaskManager is starting a new one")
        return self._child

    def pids(self) -> tuple[int | None, int | None]:
        """Return the pids of the child and of its JVM, or None for what does not run."""
        return (self._child.pid, self._child.jvm_pid) if self._child is not None else (None, None)

    def condemn(self, generation: int, reason: str) -> None:
        """Give up this child: it is killed and replaced. Does nothing to a later one."""
        if generation == self.generation and self._condemned is not None and not self._condemned.done():
            self._condemned.set_result(reason)

    def renew(self, reason: str) -> None:
        """Replace the child by the next generation (R6a). Does nothing while none is ready."""
        if self.phase is SessionPhase.READY:
            self._renewing = True
            self._enter(SessionPhase.STARTING)
            self.condemn(self.generation, reason)

    async def gone(self, generation: int, timeout: float = GONE_TIMEOUT) -> bool:
        """Wait until nothing of this child runs any more. Return False if that takes longer than `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout), self._turn:
                await self._turn.wait_for(lambda: self.generation > generation or self._ended == generation)
        except TimeoutError:
            log.error("a session child that was given up does not end", generation=generation)
            return False
        return True

    async def _start(self) -> None:
        self.tasks.loop("keep a session", self._keep)

    async def _stop(self) -> None:
        if self._child is not None:
            await self._child.kill()
            self._child = None

    async def _keep(self) -> None:
        pause = PAUSE_AFTER_FAILED_START
        while True:
            was_ready = await self._one_life()
            if was_ready:
                pause = PAUSE_AFTER_FAILED_START
            else:
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _one_life(self) -> bool:
        """Start a child and watch it until its end. Return whether it was ever ready."""
        self.generation += 1
        generation = self.generation
        self._ready.clear()
        self._renewing = False
        condemned = self._condemned = asyncio.get_running_loop().create_future()
        self._enter(SessionPhase.STARTING)
        directory = Path(self._config.working_directory) / f"session-{generation}"
        config = copy(self._config, working_directory=str(directory))
        output = config.output
        printed = output.stat().st_size if output.exists() else 0
        try:
            child = await SessionProcess.launch(
                config,
                generation=generation,
                directory=directory,
                mailbox=self._mailbox(generation),
                on_close=lambda: self.condemn(generation, "the session child ended"),
                command=self._command,
            )
        except Exception as error:
            self._start_failed(f"its process could not be started: {error}")
            raise
        self._child = child
        was_ready, reason = False, None
        try:
            reason = await self._await_ready(condemned)
            if reason is None:
                was_ready = True
                self.start_error = ""
                self._enter(SessionPhase.READY)
                self.first_ready.set()
                log.info("the session is ready", generation=generation, took=_told(self.phases))
                reason = await self._watch(child, condemned)
        finally:
            self.aged, self.jvm, self.workers = "", {}, {}
            if not self._renewing:
                self._enter(SessionPhase.LOST)
            ended = await child.ended(LAST_WORD)
            await child.send_kill()
            if was_ready and reason is not None:
                self._tell_lost(generation, f"{reason} (exit code {child.exit_code})" if ended else reason)
            await child.gone()
            self._child = None
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
            async with self._turn:
                self._ended = generation
                self._turn.notify_all()
        if not was_ready:
            reason = f"{reason} (exit code {child.exit_code})"
            self._start_failed(start_failure(reason, printed_since(output, printed), config))
            self._tell_lost(generation, f"its session does not start: {self.start_error}")
        log.info("the session child is gone", generation=generation, exit_code=child.exit_code)
        self._listener().session_gone()
        return was_ready

    def _tell_lost(self, generation: int, reason: str) -> None:
        say = log.info if self._renewing else log.warning
        say("the session child is lost", generation=generation, reason=reason)
        self._listener().session_lost(generation, reason)

    def _start_failed(self, why: str) -> None:
        self.start_error = why
        self._on_start_failed(why)

    async def _await_ready(self, condemned: asyncio.Future[str]) -> str | None:
        """Wait for the child. Return None when it is warm, otherwise why it is given up."""
        assert self._child is not None
        ready = asyncio.ensure_future(self._ready.wait())
        either: set[asyncio.Future[Any]] = {ready, condemned}
        now = self._clock.monotonic()
        start = session_start.begun(self._start_timeout, self._given_up, now)
        try:
            while True:
                pause = min(START_INTERVAL, start.timeout / 10)
                await asyncio.wait(either, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                if condemned.done():
                    return condemned.result()
                if self._ready.is_set():
                    self._given_up = 0
                    return None
                before, now = now, self._clock.monotonic()
                if now - before >= LATE:  # nothing was checked, for example while the supervisor was stopped
                    start = session_start.unwatched(start, now - before)
                start = self._look_at_start(start, await asyncio.to_thread(work_of, self._child.pid), now)
                if (why := session_start.verdict(start, _load(), now)) is not None:
                    self._given_up += 1
                    return why
        finally:
            self.slow = ""
            ready.cancel()

    def _look_at_start(
        self, before: session_start.Starting, work: session_start.Work, now: float
    ) -> session_start.Starting:
        start = session_start.observed(before, work, now)
        self.steps += start.steps - before.steps
        said, self.slow = self.slow, session_start.slow(start, _load(), now)
        if self.slow and not said:
            log.warning("a session starts slowly", generation=self.generation, why=self.slow)
        return start

    async def _watch(self, child: SessionProcess, condemned: asyncio.Future[str]) -> str:
        ping: asyncio.Task[sp.Pong] | None = None
        asked, looked, collecting = 0.0, self._clock.monotonic(), CollectionShare()
        fresh = await asyncio.to_thread(figures_together, (child.pid, child.jvm_pid))
        bounds = sensible(self._bounds, fresh)
        if bounds != self._bounds:
            log.warning("bounds of a session are too low for a fresh one", fresh=fresh, given=self._bounds, used=bounds)
        now = self._clock.monotonic()
        health = Health(heard=now)  # not earlier: a pause before this would be blamed on the child
        try:
            while True:
                await asyncio.wait({condemned}, timeout=WATCH_INTERVAL)
                before, now = now, self._clock.monotonic()
                if now - before >= LATE:
                    health = unwatched(health, now - before)
                if condemned.done():
                    return condemned.result()
                if child.jvm_gone():
                    return "the JVM ended"
                health = observed(health, child.stopped(), now)
                if ping is not None and ping.done():
                    if ping.exception() is None:
                        health = heard(health, asked)
                        self.jvm = collecting.add(now, ping.result().jvm)
                    ping = None
                if ping is None and now - asked >= PING_INTERVAL:
                    asked = now
                    ping = asyncio.ensure_future(child.ask(sp.Ping(), timeout=2 * self._limits.silent))
                if reason := verdict(health, self._limits, now):
                    return reason
                if now - looked >= AGE_INTERVAL:
                    looked = now
                    await self._look_at_age(child, bounds)
                    self.workers = await asyncio.to_thread(worker_metrics, child.jvm_pid)
        finally:
            if ping is not None:
                ping.cancel()
                await asyncio.gather(ping, return_exceptions=True)

    async def _look_at_age(self, child: SessionProcess, bounds: Figures) -> None:
        """Check whether the session has aged.

        While tasks run, it may pass a bound for good reason. That is reported, and taken back when they have ended.
        """
        reason = aged(await asyncio.to_thread(figures_together, (child.pid, child.jvm_pid)), bounds)
        changed = bool(reason) != bool(self.aged)
        self.aged = reason
        if changed:
            log.info("the session has aged" if reason else "the session is as it was", why=reason)
            self._listener().session_changed(self.phase)

    def _enter(self, phase: SessionPhase) -> None:
        self.phase = phase
        self._listener().session_changed(phase)

    def _mailbox(self, generation: int) -> Mailbox:
        mailbox = Mailbox(sp.SUPERVISOR)

        async def ready(notice: sp.SessionReady) -> None:
            if self._child is not None and generation == self.generation:
                self._child.jvm_pid = notice.jvm_pid
                self.phases = notice.phases
                self._ready.set()

        async def failed(notice: sp.SessionFailed) -> None:
            self.condemn(generation, f"the session could not be built: {notice.error}")

        async def jvm_lost(notice: sp.JvmLost) -> None:
            self.condemn(generation, notice.reason)

        async def task_failed(notice: sp.TaskFailed) -> None:
            self._listener().task_failed(generation, notice)

        async def batch_finished(notice: sp.BatchFinished) -> None:
            self._listener().batch_finished(generation, notice)

        async def input_ended(notice: sp.InputEnded) -> None:
            self._listener().input_ended(generation, notice)

        mailbox.on_notice(sp.SessionReady, ready)
        mailbox.on_notice(sp.SessionFailed, failed)
        mailbox.on_notice(sp.JvmLost, jvm_lost)
        mailbox.on_notice(sp.TaskFailed, task_failed)
        mailbox.on_notice(sp.BatchFinished, batch_finished)
        mailbox.on_notice(sp.InputEnded, input_ended)
        return mailbox


def _load() -> float:
    """Return the number of runnable processes per processor, over the last minute."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def _told(phases: Mapping[str, float]) -> str:
    """Format like `session 3.20 s, first job 1.10 s`."""
    return ", ".join(f"{name.replace('_', ' ')} {seconds:.2f} s" for name, seconds in phases.items())
