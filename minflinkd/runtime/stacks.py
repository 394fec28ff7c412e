"""The stacks of this process: its threads, and the tasks of its event loop, as texts that are bounded."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from types import FrameType

DEEPEST = 64  # frames of one stack
MOST_TASKS = 500  # of the event loop


@dataclass(frozen=True)
class Stack:
    """A thread, or a task of an event loop: what it is called, and where it is, the innermost frame first."""

    name: str
    frames: tuple[str, ...]


def thread_stacks() -> list[Stack]:
    """Return the stack of every thread. May be called on any thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return [
        Stack(names.get(ident, f"thread {ident}"), described(frame)) for ident, frame in sys._current_frames().items()
    ]


def task_stacks() -> list[Stack]:
    """Return where the tasks of the running event loop wait. Call it on the loop."""
    found = []
    for task in sorted(asyncio.all_tasks(), key=lambda one: one.get_name())[:MOST_TASKS]:
        frames = task.get_stack(limit=DEEPEST)
        found.append(Stack(task.get_name(), tuple(_line(frame, frame.f_lineno) for frame in reversed(frames))))
    return found


def described(innermost: FrameType) -> tuple[str, ...]:
    """Return the frames from the innermost one on."""
    return tuple(_line(frame, number) for frame, number in _walk(innermost))


def _walk(innermost: FrameType) -> Iterable[tuple[FrameType, int]]:
    for count, (frame, number) in enumerate(traceback.walk_stack(innermost)):
        if count == DEEPEST:
            return
        yield frame, number


def _line(frame: FrameType, number: int | None) -> str:
    code = frame.f_code
    return f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname}({code.co_filename}:{number})"


def as_text(stack: Stack, kind: str) -> str:
    """Return a stack in the form of a Java thread dump, which Flink's dashboard shows."""
    return f'"{stack.name}" {kind}\n' + "".join(f"\tat {frame}\n" for frame in stack.frames) + "\n"
