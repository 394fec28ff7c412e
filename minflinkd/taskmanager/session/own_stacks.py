"""Samples the Python threads of the session child from within: what is done where py-spy cannot look from outside."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from pathlib import Path

from minflinkd.rpc.messages import SampledStack
from minflinkd.rpc.messages.threads import LONGEST_FRAME, MOST_STACKS
from minflinkd.runtime import stacks
from minflinkd.taskmanager.session.spark.jvm_view import PAUSE

LABEL = "Python: driver, of all tasks"


def sample(seconds: float) -> list[SampledStack]:
    """Sample all threads but this one for that long. Blocks."""
    counts: Counter[tuple[bool, tuple[str, ...]]] = Counter()
    until, me = time.monotonic() + seconds, threading.get_ident()
    while time.monotonic() < until:
        named = {thread.ident: thread for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident == me:
                continue
            thread = named.get(ident)
            frames = (frame[:LONGEST_FRAME] for frame in reversed(stacks.described(frame)))
            name = thread.name if thread is not None else f"thread {ident}"
            key = (_runs(thread), (LABEL, name, *frames))
            if key in counts or len(counts) < MOST_STACKS // 4:
                counts[key] += 1
        time.sleep(PAUSE)
    return [SampledStack(frames=found, count=count, running=runs) for (runs, found), count in counts.items()]


def _runs(thread: threading.Thread | None) -> bool:
    """Whether the kernel runs the thread, or would. One that waits for Python's lock does not count as running."""
    if thread is None or thread.native_id is None:
        return False
    try:
        state = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state == "R"
