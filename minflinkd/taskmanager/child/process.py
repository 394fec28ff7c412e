"""One session child as a process: started, spoken to over a socketpair, watched, and ended with all its descendants."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
import structlog

from minflinkd.rpc.connection import Connection
from minflinkd.rpc.messages import Request
from minflinkd.rpc.network import Mailbox, Unreachable
from minflinkd.rpc.parties import Party
from minflinkd.rpc.peer import Peer
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.run_as import launching

R = TypeVar("R")
log = structlog.get_logger(__name__)

KILL_TIMEOUT = 10.0  # seconds


class SessionProcess:
    """A session child, made by `launch`."""

    def __init__(self, process: asyncio.subprocess.Process, connection: Connection, generation: int) -> None:
        self.generation = generation
        self.pid = process.pid
        self.jvm_pid: int | None = None
        self.phases: dict[str, float] = {}
        self._process = process
        self._killed: list[psutil.Process] = []
        self._connection = connection

    @classmethod
    async def launch(
        cls,
        config: sp.SessionConfig,
        *,
        generation: int,
        directory: Path,
        mailbox: Mailbox,
        on_close: Callable[[], None],
        command: Sequence[str] = sp.COMMAND,
    ) -> SessionProcess:
        """Start a child. Raises OSError, NoSuchUser, CannotRunAs."""
        config_file = directory / "session.json"
        await asyncio.to_thread(_prepare, config, config_file)  # its files belong to the child's user
        before, environ = launching(config.run_as, directory)
        config.output.parent.mkdir(parents=True, exist_ok=True)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            process = await _spawn((*before, *command), theirs.fileno(), config_file, config.output, environ)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        connection = Connection(
            reader,
            writer,
            local=lambda target: mailbox if target == sp.SUPERVISOR else None,
            name=f"session child {generation}",
            peer=Peer(frozenset({Party.SESSION_CHILD})),
            on_close=on_close,
        )
        connection.start()
        return cls(process, connection, generation)

    async def ask(self, request: Request[R], timeout: float) -> R:
        """Send a request to the child. Raises RemoteError, RpcTimeout, SessionLost."""
        try:
            return await self._connection.ask(sp.SESSION, request, timeout=timeout)
        except Unreachable as error:
            raise sp.SessionLost("the session child ended") from error

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await self._process.wait()

    def stopped(self) -> bool:
        """Whether a signal has stopped the child or its JVM (process state T). False if that cannot be known."""
        for pid in (self.pid, self.jvm_pid):
            if pid is not None:
                with contextlib.suppress(psutil.Error):
                    if psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                        return True
        return False

    def jvm_gone(self) -> bool:
        if self.jvm_pid is None:
            return False
        try:
            return psutil.Process(self.jvm_pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return False

    async def ended(self, patience: float) -> bool:
        """Whether the child itself has ended, or does so within so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._process.wait()
        return self._process.returncode is not None

    async def kill(self) -> None:
        """End the child, its JVM and its Python workers, and wait until they are gone. Idempotent."""
        await self.send_kill()
        await self.gone()

    async def send_kill(self) -> None:
        """Send SIGKILL to the child, its JVM and its Python workers. Idempotent.

        They do nothing more from then on. Executors on a Spark cluster end when they notice that their driver has gone.
        """
        self._killed = await asyncio.to_thread(self._brood)
        for process in self._killed:
            with contextlib.suppress(psutil.Error):
                process.kill()

    async def gone(self) -> None:
        """Wait until the killed processes have left the system, which takes a second for a JVM with much memory."""
        below = [process for process in self._killed if process.pid != self.pid]  # asyncio reaps the child itself
        _, alive = await asyncio.to_thread(psutil.wait_procs, below, KILL_TIMEOUT)
        if alive:
            log.error("processes of a session child do not end", pids=[p.pid for p in alive])
        try:
            async with asyncio.timeout(KILL_TIMEOUT):
                await self._process.wait()
        except TimeoutError:  # it hangs in the kernel; its loss is reported anyway, and it gets no more requests
            log.error("a killed session child does not end", pid=self.pid)
        await self._connection.aclose()

    def _brood(self) -> list[psutil.Process]:
        """Return the child and all its descendants.

        Find the JVM by its pid: a dead child's is no longer below it.
        """
        found: dict[int, psutil.Process] = {}
        for pid in (self.pid, self.jvm_pid):
            if pid is None:
                continue
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if pid == self.jvm_pid and not _is_ours(process):
                    continue
                found[pid] = process
                found.update({below.pid: below for below in process.children(recursive=True)})
        if self._process.returncode is not None:
            found.pop(self.pid, None)  # reaped: the pid may belong to another process by now
        return list(found.values())


def _is_ours(process: psutil.Process) -> bool:
    """Whether this is our JVM: it is in our process group. Pids are reused."""
    try:
        return os.getpgid(process.pid) == os.getpgrp()
    except ProcessLookupError:
        return False


def _prepare(config: sp.SessionConfig, config_file: Path) -> None:
    config_file.parent.mkdir(parents=True, exist_ok=True)
    sp.write_config(config, config_file)


async def _spawn(
    command: Sequence[str], fd: int, config_file: Path, log_file: Path, environ: Mapping[str, str] | None
) -> asyncio.subprocess.Process:
    """Start the child. It enters its directory itself, which is perhaps closed to this process's user."""
    with log_file.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            *command,
            "--fd",
            str(fd),
            "--config",
            str(config_file),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(fd,),
            cwd="/" if environ is not None else config_file.parent,
            env=environ,
        )
