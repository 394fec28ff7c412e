"""A real Spark standalone cluster for tests: a master and a worker on loopback, on free ports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from tests.waiting import until

HOME = Path(pyspark.__file__).parent


@dataclass(frozen=True)
class SparkCluster:
    url: str
    worker: asyncio.subprocess.Process
    work: Path  # the worker's directory; it has a subdirectory for the executors of each application

    def executors(self) -> list[psutil.Process]:
        """Return the executors that run now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [p for p in psutil.Process(self.worker.pid).children(recursive=True) if p.name() == "java"]
        return []


@contextlib.asynccontextmanager
async def spark_cluster(base: Path, *, cores: int, memory: str = "1g") -> AsyncIterator[SparkCluster]:
    base.mkdir(parents=True)
    async with contextlib.AsyncExitStack() as stack:
        places = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        await stack.enter_async_context(_daemon(base / "master.log", "master.Master", *places))
        url = await until(lambda: _said(base / "master.log", r"Starting Spark master at (\S+)"), "a Spark master")
        limits = ("--cores", str(cores), "--memory", memory, "--work-dir", str(base / "work"))
        worker = await stack.enter_async_context(_daemon(base / "worker.log", "worker.Worker", *places, *limits, url))
        await until(lambda: _said(base / "worker.log", r"(Successfully registered) with master"), "a Spark worker")
        yield SparkCluster(url, worker, base / "work")


@contextlib.asynccontextmanager
async def _daemon(log: Path, kind: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a daemon of Spark. At the end it is gone, with all that it started."""
    environ = {
        "SPARK_HOME": str(HOME),
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_LOCAL_DIRS": str(log.parent / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            str(HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env=os.environ | environ,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        brood = psutil.Process(process.pid).children(recursive=True) if process.returncode is None else []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        for left in brood:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        await asyncio.to_thread(psutil.wait_procs, brood, 10)


async def _said(log: Path, pattern: str) -> str | None:
    found = re.search(pattern, log.read_text(errors="replace"))
    return found[1] if found else None
