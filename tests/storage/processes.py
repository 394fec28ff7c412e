"""Storage clients in processes of their own: to be killed, or to show what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_WRITER = """
import asyncio, {module}
async def main():
    writer = await {make}.create({path!r})
    while True:
        await writer.append(bytes(2 << 20))
        print("more", flush=True)
asyncio.run(main())
"""
_CLIENT = """
import asyncio, {module}
async def main():
    storage = {make}
    {work}
    await storage.aclose()
asyncio.run(main())
"""


@contextmanager
def start_writer(module: str, make: str, path: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process that writes an object without end. Return when it has sent more than one part."""
    code = _WRITER.format(module=module, make=make, path=path)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(4)] == ["more\n"] * 4
            yield process
        finally:
            process.kill()


def run_client(module: str, make: str, work: str, **environment: str) -> str:
    """Run the code with every warning on, and return what it prints.

    It may print no warning, e.g. about open sessions.
    """
    code = _CLIENT.format(module=module, make=make, work=work)
    argv = [sys.executable, "-X", "dev", "-c", code]
    done = subprocess.run(argv, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for word in ("nclosed", "never awaited", "never retrieved", "Traceback", "destroyed"):
        assert word not in done.stderr, done.stderr
    return done.stdout
