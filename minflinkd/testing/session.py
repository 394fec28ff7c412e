"""The Spark session of a test run: one session child, as TaskManagers have it, started once and shared by all tests.

Tests are plain functions, so everything here blocks. The child is spoken to from an event loop on a thread of its own;
the thread lives as long as the session, because the kernel ends the child with the thread that started it.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import TimeoutError as NotInTime
from pathlib import Path
from typing import Any, TypeVar

from minflinkd.rpc.messages import Notice, Request
from minflinkd.rpc.network import Mailbox
from minflinkd.runtime.errors import Consequence, ErrorInfo, MinflinkError, RemoteError
from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.child import protocol as p
from minflinkd.taskmanager.child.process import SessionProcess
from minflinkd.testing.keeping import DIRECTORY

R = TypeVar("R")

SLOTS = 2
_CLOSE_TIMEOUT = 30.0  # seconds
_LAST_WORDS = 30  # lines of the session's log that are shown if it does not start
_SCRATCH = ("session", "attempts", "snapshots", "described", "rows")
_CAUSE = 15.0  # seconds until a failed query has said why; it takes much less

# State is small and a test is short: what keeps a long-lived session tidy need not run while a test waits.
_CONF = {"spark.sql.streaming.pollingDelay": "10ms"}


class NoSession(MinflinkError):
    """No Spark session could be started for the tests."""

    code = "no-test-session"
    consequence = Consequence.FATAL


class LocalSession:
    """A session child for tests. `start` blocks until it is warm; call `close` at the end.

    `directory`: of this session only. `class_archives`: a directory of class archives that make the start faster; "":
    none. `conf`: more Spark settings. `timeout`: seconds that a start, or one step of a job, may take.
    """

    def __init__(
        self,
        directory: Path,
        *,
        class_archives: str = "",
        conf: Mapping[str, str] | None = None,
        timeout: float = 180.0,
    ) -> None:
        self.directory = directory
        self.rows = directory / "rows"
        self.timeout = timeout
        self.phases: dict[str, float] = {}  # seconds of the start
        self._class_archives = class_archives
        self._conf = {**_CONF, **(conf or {}), DIRECTORY: str(self.rows)}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="minflinkd test session", daemon=True)
        self._child: SessionProcess | None = None
        self._hangs = False
        self._ready: asyncio.Future[None] | None = None
        self._lost: asyncio.Future[None] | None = None
        self._failed: dict[AttemptId, asyncio.Future[ErrorInfo]] = {}
        self._ended: dict[AttemptId, asyncio.Event] = {}

    @property
    def log(self) -> Path:
        """What the session and the job's code print."""
        return self.directory / "log" / p.LOG

    def start(self) -> None:
        """Raises NoSession."""
        self._thread.start()
        try:
            self.call(self._start())
        except BaseException:
            self.close()
            raise

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended or hangs. Jobs that ran in it are gone."""
        return self._hangs or (self._lost is not None and self._lost.done())

    def revive(self) -> None:
        """Start another session if this one is lost: a job has ended its process, or never comes back."""
        if self.is_lost:
            self.call(self._stop(), timeout=_CLOSE_TIMEOUT)
            self._failed.clear()
            self._ended.clear()
            self._hangs = False
            self.call(self._start())

    def close(self) -> None:
        """End the session and all that it runs. Its log stays. Idempotent."""
        if not self._thread.is_alive():
            return
        try:
            self.call(self._stop(), timeout=_CLOSE_TIMEOUT)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_TIMEOUT)
            for name in _SCRATCH:
                shutil.rmtree(self.directory / name, ignore_errors=True)

    def call(self, work: Coroutine[Any, Any, R], timeout: float | None = None) -> R:
        """Run a coroutine on the session's loop, and return its result. Raises NoSession if it takes too long."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        limit = timeout or self.timeout
        try:
            return future.result(limit)
        except NotInTime:
            future.cancel()
            self._hangs = True
            raise NoSession(f"the session did not answer within {limit:g} s", hint=f"its log: {self.log}") from None

    # --- on the loop -----------------------------------------------------------------------------------------------

    async def ask(self, request: Request[R]) -> R:
        """Raises RemoteError, RpcTimeout, SessionLost."""
        assert self._child is not None
        return await self._child.ask(request, timeout=self.timeout)

    def expect(self, attempt: AttemptId) -> None:
        """Note from now on how this attempt ends."""
        self._failed[attempt] = self._loop.create_future()
        self._ended[attempt] = asyncio.Event()

    def forget(self, attempt: AttemptId) -> None:
        self._failed.pop(attempt, None)
        self._ended.pop(attempt, None)

    async def of_attempt(self, attempt: AttemptId, request: Request[R]) -> R:
        """Ask for something of a running attempt. If its query fails, the error is the query's. Raises RemoteError."""
        failed = self._failed[attempt]
        asked = asyncio.ensure_future(self.ask(request))
        both: set[asyncio.Future[Any]] = {asked, failed}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if asked.done() and self._has_a_cause(asked.exception()):
            await asyncio.wait({failed}, timeout=_CAUSE)
        if failed.done():
            asked.cancel()
            await asyncio.wait({asked})
            raise as_error(failed.result())
        return asked.result()

    def _has_a_cause(self, error: BaseException | None) -> bool:
        """Whether a request failed since the query has ended. Then the query's own error says why, a moment later."""
        ended = isinstance(error, RemoteError) and error.info().consequence is Consequence.RETRYABLE
        return ended and not self.is_lost

    async def input_ended(self, attempt: AttemptId) -> None:
        """Wait until the attempt has processed all its input. Raises RemoteError if its query fails."""
        failed, ended = self._failed[attempt], asyncio.ensure_future(self._ended[attempt].wait())
        both: set[asyncio.Future[Any]] = {ended, failed}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if failed.done():
            raise as_error(failed.result())

    async def _start(self) -> None:
        self._ready, self._lost = self._loop.create_future(), self._loop.create_future()
        mailbox = Mailbox(p.SUPERVISOR)
        for kind in (p.SessionReady, p.SessionFailed, p.TaskFailed, p.BatchFinished, p.InputEnded, p.JvmLost):
            mailbox.on_notice(kind, self._heard)
        config = p.SessionConfig(
            name="minflinkd-test",
            slots=SLOTS,
            working_directory=str(self.directory / "session"),
            log_directory=str(self.directory / "log"),
            conf=self._conf,
            class_archives=self._class_archives,
            stepped=True,
        )
        self._child = await SessionProcess.launch(
            config, generation=1, directory=self.directory, mailbox=mailbox, on_close=self._closed
        )
        await asyncio.wait({self._ready, self._lost}, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            raise NoSession(f"no Spark session starts here; its log {self.log} ends:\n{self._last_words()}")
        await self._ready

    async def _heard(self, notice: Notice) -> None:
        if isinstance(notice, p.SessionReady):
            assert self._child is not None
            assert self._ready is not None
            self._child.jvm_pid, self.phases = notice.jvm_pid, notice.phases
            self._ready.set_result(None)
        elif isinstance(notice, p.SessionFailed) and self._ready is not None and not self._ready.done():
            self._ready.set_exception(as_error(notice.error))
        elif isinstance(notice, p.TaskFailed) and notice.attempt_id in self._failed:
            failed = self._failed[notice.attempt_id]
            if not failed.done():
                failed.set_result(notice.error)
        elif isinstance(notice, p.InputEnded) and notice.attempt_id in self._ended:
            self._ended[notice.attempt_id].set()

    def _closed(self) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    async def _stop(self) -> None:
        if self._child is not None:
            await self._child.kill()
            self._child = None

    def _last_words(self) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_WORDS:])
        except OSError:
            return "(it is empty)"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


def as_error(info: ErrorInfo) -> RemoteError:
    """Return an error of the session, with the traceback of the job's code as pytest shows it."""
    error = RemoteError(info)
    if info.traceback:
        error.add_note(info.traceback)
    return error
