"""A Python process with its own Spark session, which answers in lines of JSON and ends with its input."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

_TIMEOUT = 900  # seconds for an answer
_END = 120  # seconds to end, after the end of its input


class SparkProcess:
    """Output on stdout that is not JSON comes from Spark and is ignored."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    def tell(self, line: bytes) -> None:
        """Write a line to its stdin. Adds the newline."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")

    async def answer(self) -> dict[str, Any]:
        """Return its next answer. Raises RuntimeError with Spark's output, TimeoutError."""
        assert self._process.stdout is not None
        async with asyncio.timeout(_TIMEOUT):
            while line := await self._process.stdout.readline():
                if line.startswith(b"{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
        raise RuntimeError(self._log.read_text(errors="replace")[-3000:])


@contextlib.asynccontextmanager
async def spark_process(module: str, settings: Mapping[str, Any], log: Path) -> AsyncIterator[SparkProcess]:
    """Run `python -m MODULE SETTINGS` with its stderr in `log`. Raises RuntimeError if it ends with an error."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, json.dumps(settings)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
        )
    try:
        yield SparkProcess(process, log)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(_END):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(log.read_text(errors="replace")[-3000:])
