"""Has the class archive of this machine made, if there is none, once the first session is ready.

A process of its own makes it, at the lowest priority, because a JVM writes its archive only when it exits. It takes
about 25 seconds of processor time and 600 MB, once for each installation. If it fails, sessions start as they did.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO

import psutil
import structlog
from msgspec.structs import replace

from minflinkd.runtime.component import Component
from minflinkd.taskmanager.child.class_archive import class_archive
from minflinkd.taskmanager.child.protocol import COMMAND, SessionConfig, write_config
from minflinkd.taskmanager.child.run_as import launching

log = structlog.get_logger(__name__)

TIMEOUT = 900.0  # seconds; on a busy machine a process of the lowest priority gets little
MEMORY = 1536 * 1024**2  # bytes that must be free
HEAP = 512 * 1024**2
LOG = "archive.log"


class ArchiveMaker(Component):
    """`ready` returns once a session is ready. `directory` is for files of the process."""

    def __init__(self, config: SessionConfig, *, ready: Callable[[], Awaitable[object]], directory: Path) -> None:
        super().__init__("class archive")
        self._config = replace(
            config, working_directory=str(directory), log_directory=str(directory), state_directory="", heap_bytes=HEAP
        )
        self._ready = ready
        self._directory = directory

    async def _start(self) -> None:
        if self._config.class_archives and not self._config.on_cluster:
            self.tasks.job("make it", self._make())

    async def _make(self) -> None:
        await self._ready()
        archive = await asyncio.to_thread(class_archive, self._config, os.environ)
        if archive is None or archive.find() is not None:
            return
        if psutil.virtual_memory().available < MEMORY:
            log.info("no class archive is made: too little memory is free", needed=MEMORY)
            return
        try:
            await self._run()
        finally:
            await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    async def _run(self) -> None:
        file = self._directory / "archive.json"
        before, environ = launching(self._config.run_as, self._directory)
        with await asyncio.to_thread(self._prepare, file) as output:
            process = await asyncio.create_subprocess_exec(
                *(*before, *COMMAND, "--archive", "--config", str(file)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/" if before else self._directory,
                env=environ,
            )
        try:
            async with asyncio.timeout(TIMEOUT):
                status = await process.wait()
        except TimeoutError:
            log.warning("no class archive was made", reason=f"it was not done after {TIMEOUT:.0f} s")
            return
        finally:
            await _end(process)
        if status != 0:
            words = (await asyncio.to_thread((self._directory / LOG).read_text, errors="replace"))[-2000:]
            log.warning("no class archive was made", exit_code=status, said=words)

    def _prepare(self, file: Path) -> BinaryIO:
        self._directory.mkdir(parents=True, exist_ok=True)
        write_config(self._config, file)
        return (self._directory / LOG).open("wb")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the process and what it has started. Idempotent."""
    if process.returncode is not None:
        return
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for each in below:
            with contextlib.suppress(psutil.Error):
                each.kill()
    await process.wait()
