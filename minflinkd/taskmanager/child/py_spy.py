"""Reads the stacks of Python processes from outside, with py-spy: also of a process that hangs.

py-spy is optional (`pip install minflinkd[profiling]`). It reads the memory of another process, which Linux allows to
root, and to others only if `kernel.yama.ptrace_scope` is 0. Where it cannot, callers learn why.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from minflinkd.rpc.messages import SampledStack, ThreadText
from minflinkd.rpc.messages.threads import DEEPEST, LONGEST_FRAME, MOST_STACKS, MOST_TEXT
from minflinkd.runtime.errors import Consequence, MinflinkError

RATE = 20  # samples per second
PATIENCE = 8.0  # seconds that it may take longer than the samples
DUMPING = 6.0  # seconds for one dump
_PROCESS = re.compile(r"process (\d+):")
_THREAD = re.compile(r"thread \(\w+\)(?:: (.*))?")
_DUMPED = re.compile(r'Thread \S+ \(([\w+]+)\)(?:: "(.*)")?')


class CannotLook(MinflinkError):
    """py-spy is not there, or may not look into the process."""

    code = "stacks-unreadable"
    consequence = Consequence.REFUSED


def program() -> str | None:
    """Return where py-spy is: beside this interpreter, or on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


async def dump(pid: int, label: str) -> list[ThreadText]:
    """Return the threads of a process. Raises CannotLook."""
    text = await _run("dump", "--nonblocking", "--pid", str(pid), timeout=DUMPING)
    return threads_of(text[:MOST_TEXT], label)


def threads_of(dumped: str, label: str) -> list[ThreadText]:
    """Read what `py-spy dump` has printed: the innermost frame first, as in a Java thread dump."""
    found: list[ThreadText] = []
    for paragraph in dumped.split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line.strip()]
        while lines and not lines[0].startswith("Thread "):
            lines.pop(0)
        if not lines:
            continue
        match = _DUMPED.match(lines[0])
        state, name = (match[1], match[2] or "?") if match else ("?", lines[0])
        frames = "".join(f"\tat {line.strip()}\n" for line in lines[1:])
        found.append(ThreadText(name=name, text=f'"{name}" {label}, {state}\n{frames}\n'))
    return found


async def sample(pid: int, seconds: float) -> list[SampledStack]:
    """Sample a Python process and all Python processes below it. Raises CannotLook."""
    with tempfile.TemporaryDirectory(prefix="minflinkd-py-spy-", ignore_cleanup_errors=True) as directory:

        async def record(name: str, *options: str) -> str:
            out = Path(directory) / name
            await _run(
                *("record", "--nonblocking", "--subprocesses", "--threads", "--format", "raw"),
                *("--rate", str(RATE), "--duration", str(max(1, round(seconds)))),
                *("--pid", str(pid), "--output", str(out), *options),
                timeout=seconds + PATIENCE,
            )
            return await asyncio.to_thread(out.read_text, errors="replace")

        everything, active = await asyncio.gather(record("all", "--idle"), record("active"))
    return stacks_of(everything, active, pid)


def stacks_of(everything: str, active: str, driver: int) -> list[SampledStack]:
    """Read two recordings of the same seconds: of all threads, and of those that compute something."""
    running = _counted(active, driver)
    idle = _counted(everything, driver) - running
    found = [
        SampledStack(frames=frames, count=count, running=True)
        for frames, count in running.most_common(MOST_STACKS // 4)
    ]
    return found + [
        SampledStack(frames=frames, count=count, running=False) for frames, count in idle.most_common(MOST_STACKS // 4)
    ]


def _counted(recorded: str, driver: int) -> Counter[tuple[str, ...]]:
    counts: Counter[tuple[str, ...]] = Counter()
    for line in recorded.splitlines():
        stack, _, count = line.rpartition(" ")
        if count.isdecimal():
            counts[_frames(stack.split(";"), driver)] += int(count)
    return counts


def _frames(parts: list[str], driver: int) -> tuple[str, ...]:
    """Return the frames with a label instead of the processes that they are in. Command lines are left out."""
    pid, first = driver, 0
    for number, part in enumerate(parts):
        if (process := _PROCESS.match(part)) is not None:
            pid = int(process[1])
        if (thread := _THREAD.fullmatch(part)) is not None:
            first = number
            parts[number] = thread[1] or "thread"
            break
    label = "Python: driver, of all tasks" if pid == driver else "Python: workers, of all tasks"
    return (label, *(part[:LONGEST_FRAME] for part in parts[first : first + DEEPEST - 1]))


async def _run(*arguments: str, timeout: float) -> str:
    """Run py-spy, and return what it has printed. Raises CannotLook."""
    command = program()
    if command is None:
        raise CannotLook("py-spy is not installed", hint="pip install 'minflinkd[profiling]'")
    try:
        process = await asyncio.create_subprocess_exec(
            command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise CannotLook(f"py-spy does not start: {error}") from error
    try:
        async with asyncio.timeout(timeout):
            out, err = await process.communicate()
    except TimeoutError as error:
        raise CannotLook(f"py-spy takes longer than {timeout:g} s") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        said = " ".join(err.decode(errors="replace").split())[:300]
        raise CannotLook(f"py-spy cannot look into process {arguments[arguments.index('--pid') + 1]}: {said}")
    return out.decode(errors="replace")
