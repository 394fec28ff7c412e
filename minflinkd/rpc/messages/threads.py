"""Messages about what the threads of a TaskManager do: its supervisor, its session's Python processes and JVM."""

from __future__ import annotations

from minflinkd.rpc.messages.base import Message, Request
from minflinkd.runtime.ids import AttemptId

MOST_TEXT = 768 * 1024  # characters of all threads in one answer
MOST_STACKS = 2000  # different stacks in one answer
DEEPEST = 128  # frames of one of them
LONGEST_FRAME = 200  # characters


class ThreadText(Message, frozen=True):
    """A thread's name and stack, in the form of a Java thread dump."""

    name: str
    text: str


class ThreadsDumped(Message, frozen=True):
    """`missing`: processes whose threads are not known, and why."""

    threads: tuple[ThreadText, ...]
    missing: tuple[str, ...] = ()


class DumpThreads(Request[ThreadsDumped], frozen=True):
    """Also answered while the session hangs: its Python stacks are then read from outside, if py-spy is there."""


class SampledStack(Message, frozen=True):
    """A stack, the outermost frame first, and in how many samples it was.

    `running`: the thread had something to compute. `partition`: the one that it worked on, where Spark says so.
    """

    frames: tuple[str, ...]
    count: int
    running: bool
    partition: int | None = None


class StacksSampled(Message, frozen=True):
    stacks: tuple[SampledStack, ...]
    missing: tuple[str, ...] = ()


class SampleStacks(Request[StacksSampled], frozen=True):
    """Sample the threads that work for an attempt, for some seconds.

    Python code of several tasks runs in the same processes, so that part is about all tasks of the TaskManager. Refused
    if the TaskManager does not run the attempt.
    """

    attempt_id: AttemptId
    seconds: float = 2.0
