"""Whether to give up a session child. Pure.

A child that does not answer is not dead: user code may hold its interpreter for a long time (J7). If a signal has
stopped it or its JVM, it will not come back on its own. Its process state shows that at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Limits:
    """Limits in seconds."""

    silent: float
    stopped: float


@dataclass(frozen=True)
class Health:
    """When the child last answered, and since when one of its processes has been stopped by a signal."""

    heard: float
    stopped_since: float | None = None


def heard(health: Health, now: float) -> Health:
    return replace(health, heard=max(health.heard, now))


def observed(health: Health, stopped: bool, now: float) -> Health:
    if not stopped:
        return replace(health, stopped_since=None)
    return health if health.stopped_since is not None else replace(health, stopped_since=now)


def unwatched(health: Health, seconds: float) -> Health:
    """Note that nobody checked for so long, for example while the supervisor was stopped. The child is not to blame."""
    since = health.stopped_since
    return Health(health.heard + seconds, since + seconds if since is not None else None)


def verdict(health: Health, limits: Limits, now: float) -> str | None:
    """Return why the child must be replaced, or None while it may live."""
    if health.stopped_since is not None and now - health.stopped_since >= limits.stopped:
        return f"the session child or its JVM has been stopped by a signal for {now - health.stopped_since:.1f} s"
    if now - health.heard >= limits.silent:
        return f"the session child has not answered for {now - health.heard:.1f} s"
    return None
