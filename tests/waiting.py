"""The one way in which tests and benchmarks wait: look at a condition until it is true, and fail if it never is."""

from __future__ import annotations

import asyncio
import inspect
import textwrap
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE = 0.01  # seconds between two looks at a condition
LOOK = 0.05  # the same for what asks a daemon or reads many files
PATIENCE = 3.0  # how many times slower than two idle cores a machine may be: timeouts only guard against hanging


class WaitedInVain(AssertionError):
    """A condition did not become true in time. The message says which one."""


async def until(
    condition: Callable[[], T | None] | Callable[[], Awaitable[T | None]],
    what: str = "",
    *,
    timeout: float = 60.0,
    pause: float | None = None,
    patience: float = PATIENCE,
) -> T:
    """Return the first true answer of `condition`, a plain or an async function. Raises WaitedInVain.

    The error says `what` the wait was for; without it, it shows the condition's source.

    `timeout` is for a fast machine. It does not check how long something may take: a test with such a bound measures
    it. The time is the event loop's, so in virtual time this waits for nothing. An async condition is looked at less
    often, because most of them ask a daemon.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout * patience
    while clock() < deadline:
        answer = condition()
        asks = inspect.isawaitable(answer)
        found = await answer if asks else answer
        if found:
            return found
        await asyncio.sleep(pause if pause is not None else LOOK if asks else PAUSE)
    raise WaitedInVain(_in_vain(condition, what, timeout * patience))


def until_blocking(
    condition: Callable[[], T | None],
    what: str = "",
    *,
    timeout: float = 60.0,
    pause: float = PAUSE,
    patience: float = PATIENCE,
) -> T:
    """Do the same where there is no event loop. It blocks the thread."""
    deadline = time.monotonic() + timeout * patience
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(pause)
    raise WaitedInVain(_in_vain(condition, what, timeout * patience))


def _in_vain(condition: Callable[[], object], what: str, seconds: float) -> str:
    return f"waited {seconds:g} s in vain for: {what or _source(condition)}"


def _source(condition: Callable[[], object]) -> str:
    """Return the line in which a lambda stands, or the name of another function."""
    name = getattr(condition, "__qualname__", repr(condition))
    if not name.endswith("<lambda>"):
        return name
    try:
        return textwrap.dedent(inspect.getsource(condition)).strip()
    except OSError:  # no file holds it
        return name
