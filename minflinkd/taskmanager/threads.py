"""What the threads of this TaskManager do: of the supervisor, of the session child and its Python workers, of the JVM.

The session child is asked. If it does not answer, its threads are read from outside: that is when one needs them.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psutil

from minflinkd.rpc.messages import (
    DumpThreads,
    SampledStack,
    SampleStacks,
    StacksSampled,
    ThreadsDumped,
    ThreadText,
)
from minflinkd.rpc.messages.threads import MOST_STACKS, MOST_TEXT
from minflinkd.rpc.network import Mailbox
from minflinkd.runtime import stacks
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child import py_spy
from minflinkd.taskmanager.child.keeper import SessionKeeper

R = TypeVar("R")

PATIENCE = 4.0  # seconds that the session child has for a dump
LONGEST = 5.0  # seconds of samples
MORE = 4.0  # seconds that the session child has beyond the samples
MOST_WORKERS = 16  # Python workers in a dump
AT_ONCE = 2  # processes that py-spy looks into


class Threads:
    """`runs` raises if the attempt does not run here. One question is answered at a time."""

    def __init__(self, keeper: SessionKeeper, *, runs: Callable[[AttemptId], object]) -> None:
        self._keeper = keeper
        self._runs = runs
        self._turn = asyncio.Lock()

    def serve(self, mailbox: Mailbox) -> None:
        mailbox.on(DumpThreads, self._dump)
        mailbox.on(SampleStacks, self._sample)

    async def _dump(self, _: DumpThreads) -> ThreadsDumped:
        async with self._turn:
            found = [
                ThreadText(name=one.name, text=stacks.as_text(one, "supervisor")) for one in stacks.thread_stacks()
            ]
            found += [
                ThreadText(name=one.name, text=stacks.as_text(one, "task of the supervisor"))
                for one in stacks.task_stacks()
            ]
            missing: list[str] = []
            child, jvm = self._keeper.pids()
            if child is None:
                return ThreadsDumped(threads=tuple(found), missing=("the session is being started",))
            workers = await asyncio.to_thread(_python_below, child)
            answered = await _or_why(self._ask_child(), missing)
            if answered is not None:
                found += answered
            else:
                found += await _or_why(py_spy.dump(child, "session child"), missing) or []
                found += await _or_why(_jvm_from_outside(jvm), missing) or []
            limit = asyncio.Semaphore(AT_ONCE)

            async def worker(pid: int) -> list[ThreadText]:
                async with limit:
                    return await _or_why(py_spy.dump(pid, f"Python worker {pid}"), missing) or []

            for threads in await asyncio.gather(*map(worker, workers[:MOST_WORKERS])):
                found += threads
            return ThreadsDumped(threads=_bounded(found), missing=tuple(dict.fromkeys(missing)))

    async def _ask_child(self) -> list[ThreadText]:
        answer = await self._keeper.session().ask(sp.TellThreads(), PATIENCE)
        return list(answer.threads)

    async def _sample(self, request: SampleStacks) -> StacksSampled:
        self._runs(request.attempt_id)
        async with self._turn:
            seconds = min(max(request.seconds, 0.2), LONGEST)
            session, missing = self._keeper.session(), list[str]()
            ask = session.ask(sp.TellStacks(attempt_id=request.attempt_id, seconds=seconds), seconds + MORE)
            told, seen = await asyncio.gather(
                _or_why(ask, missing), _or_why(py_spy.sample(session.pid, seconds), missing)
            )
            found: list[SampledStack] = []
            if told is not None:
                found += told.jvm if seen is not None else (*told.jvm, *told.python)
            found += seen or []
            return StacksSampled(stacks=tuple(found[:MOST_STACKS]), missing=tuple(missing))


async def _or_why(work: Awaitable[R], missing: list[str]) -> R | None:
    """Return the result; None if it fails, with the reason in `missing`."""
    try:
        return await work
    except MinflinkError as error:
        missing.append(str(error))
        return None


def _python_below(pid: int) -> list[int]:
    """Return the Python processes below a process: the workers, which the JVM has started."""
    found = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.name().startswith("python"):
                    found.append(process.pid)
    return found


async def _jvm_from_outside(pid: int | None) -> list[ThreadText]:
    """Return the threads of a JVM that is not asked from within. Raises CannotLook."""
    command = shutil.which("jcmd")
    if command is None or pid is None:
        raise py_spy.CannotLook("the threads of the JVM are not known: there is no jcmd, which a JDK has")
    process = await asyncio.create_subprocess_exec(
        command, str(pid), "Thread.print", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(py_spy.DUMPING):
            out, _ = await process.communicate()
    except TimeoutError as error:
        raise py_spy.CannotLook("the JVM does not answer jcmd") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        raise py_spy.CannotLook(f"jcmd cannot ask the JVM (exit code {process.returncode})")
    texts = out.decode(errors="replace")[: MOST_TEXT // 2].split("\n\n")
    return [ThreadText(name=text.split('"')[1], text=f"{text}\n\n") for text in texts if text.startswith('"')]


def _bounded(found: list[ThreadText]) -> tuple[ThreadText, ...]:
    """Return as many as fit into one message."""
    kept, left = [], MOST_TEXT
    for one in found:
        left -= len(one.text) + len(one.name)
        if left < 0:
            break
        kept.append(one)
    return tuple(kept)
