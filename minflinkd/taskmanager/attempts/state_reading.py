"""Lays out the state of a task from a checkpoint once more, and has the session child read it (E19c).

The copy is private: nothing else uses its directory, which is deleted when the answer is there. What a supervisor that
was killed has left goes with the state directory of its TaskManager.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import structlog

from minflinkd.rpc import messages as m
from minflinkd.rpc.network import RpcTimeout
from minflinkd.runtime.errors import Consequence, Kind, MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.taskmanager.attempts.deployment import Deployer, attempt_directory
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.keeper import SessionKeeper

log = structlog.get_logger(__name__)

R = TypeVar("R")

MOST_BYTES = 8 * 1024**3  # laid out for one reading
SHARE = 0.5  # of the free space of the disk that a reading may use
_GRACE = 20.0  # seconds for the child to end a reading whose time is over


class StateTooLarge(MinflinkError):
    """The state does not fit on the TaskManager's disk beside what runs there, or is larger than a reading may be."""

    code = "state-too-large"
    consequence = Consequence.REFUSED


class StateReadBusy(MinflinkError):
    """The TaskManager reads other state for as long as this reading may take."""

    code = "state-read-busy"
    consequence = Consequence.RETRYABLE
    kind = Kind.CLUSTER


class StateReads:
    """One reading at a time, so that what runs in the session keeps its memory, its disk and its processors.

    `begins` and `ends` tell the core of each reading, as of an analysis: the session is not replaced meanwhile.
    """

    def __init__(
        self,
        *,
        keeper: SessionKeeper,
        deployer: Deployer,
        directory: Path,
        begins: Callable[[JobId, bool], None],
        ends: Callable[[JobId], None],
        tasks: TaskOwner,
    ) -> None:
        self._keeper = keeper
        self._deployer = deployer
        self._directory = directory
        self._begins = begins
        self._ends = ends
        self._tasks = tasks
        self._turn = asyncio.Lock()
        self._under_way: dict[str, asyncio.Future[Any]] = {}

    async def read(self, request: m.ReadState) -> m.StateFound:
        """Answer a ReadState. Raises StateTooLarge, StateReadBusy, SessionLost, StorageError, what the child raises."""

        async def ask(places: list[sp.LaidOut], timeout: float) -> m.StateFound:
            [place] = places
            question = sp.ReadStates(read_id=request.read_id, state=place, question=request.question, timeout=timeout)
            return await self._keeper.session().ask(question, timeout + _GRACE)

        return await self._joined(request, (request.files,), ask)

    async def compare(self, request: m.CompareState) -> m.StateGrowth:
        """Answer a CompareState. Raises what `read` raises."""

        async def ask(places: list[sp.LaidOut], timeout: float) -> m.StateGrowth:
            before, after = places
            question = sp.CompareStates(
                read_id=request.read_id,
                before=before,
                after=after,
                store=request.store,
                largest=request.largest,
                timeout=timeout,
            )
            return await self._keeper.session().ask(question, timeout + _GRACE)

        return await self._joined(request, (request.before, request.after), ask)

    async def _joined(
        self,
        request: m.ReadState | m.CompareState,
        files: tuple[m.StateFiles, ...],
        ask: Callable[[list[sp.LaidOut], float], Awaitable[R]],
    ) -> R:
        """Begin the reading, or wait for the one with the same id."""
        number = request.read_id
        if number not in self._under_way:
            answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()

            async def work() -> None:
                try:
                    answer.set_result(await self._run(request, files, ask))
                except Exception as error:
                    answer.set_exception(error)
                    answer.exception()  # whoever asked may be gone
                finally:
                    answer.cancel()
                    self._under_way.pop(number, None)

            self._tasks.job(f"reading of state {number}", work())
            self._under_way[number] = answer
        found: R = await asyncio.shield(self._under_way[number])
        return found

    async def _run(
        self,
        request: m.ReadState | m.CompareState,
        files: tuple[m.StateFiles, ...],
        ask: Callable[[list[sp.LaidOut], float], Awaitable[R]],
    ) -> R:
        loop = asyncio.get_running_loop()
        until = loop.time() + request.timeout
        self._begins(request.job_id, request.exclusive)
        try:
            async with self._in_turn(request.timeout), AsyncExitStack() as stack:
                async with asyncio.timeout_at(until):
                    places = [await stack.enter_async_context(self._laid_out(request, each)) for each in files]
                return await ask(places, max(until - loop.time(), 0.1))
        except (TimeoutError, RpcTimeout) as error:
            raise sp.StateReadExpired(
                f"the state could not be laid out and read within {request.timeout:g} s", hint="allow more time"
            ) from error
        finally:
            self._ends(request.job_id)

    @asynccontextmanager
    async def _in_turn(self, timeout: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout):
                await self._turn.acquire()
        except TimeoutError as error:
            raise StateReadBusy("the TaskManager reads other state", hint="try again later") from error
        try:
            yield
        finally:
            self._turn.release()

    @asynccontextmanager
    async def _laid_out(self, request: m.ReadState | m.CompareState, files: m.StateFiles) -> AsyncIterator[sp.LaidOut]:
        snapshot = files.snapshot
        parent = attempt_directory(self._directory, f"state-{secrets.token_hex(8)}")
        target = parent / "checkpoint"
        size = sum({file.handle: file.handle.length for file in snapshot.files}.values())
        try:
            await asyncio.to_thread(self._require_room, size)
            await self._deployer.lay_out(request.job_id, snapshot, files.root, target, own=files.own)
            log.info("state laid out to be read", job=request.job_id, task=request.task_id, bytes=size)
            yield sp.LaidOut(directory=str(target), batch_id=snapshot.batch_id, operators=snapshot.operators)
        finally:
            # Not cancelled with the reading: what is left would stay as long as the TaskManager.
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, parent, ignore_errors=True))

    def _require_room(self, size: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._directory).free - self._deployer.min_free
        most = min(MOST_BYTES, int(max(free, 0) * SHARE))
        if size > most:
            raise StateTooLarge(
                f"the state has {size:,} bytes; at most {most:,} are laid out here for a reading",
                hint="a TaskManager with more free space on its disk; or a smaller checkpoint",
            )
