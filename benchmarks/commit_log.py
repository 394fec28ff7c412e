"""When each micro-batch of a query was committed, from Spark's commit log. Both sides are measured in this way."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tests.beside import beside
from tests.cluster import Cluster
from tests.waiting import until

_CHECKPOINTS = "taskmanagers/*/state/attempts/*/checkpoint"  # of queries, in a daemon's state directory

Commits = dict[int, float]  # micro-batch -> seconds since 1970


def commits(checkpoint: Path) -> Commits:
    """Read the commits in a query's checkpoint directory."""
    found: Commits = {}
    for entry in (checkpoint / "commits").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, but seen earlier
            found[int(entry.name)] = entry.stat().st_mtime
    return found


async def committed(cluster: Cluster, epoch: int, *, timeout: float = 60.0) -> None:
    """Wait until the only running job has committed this micro-batch. Returns at most 0.01 s later."""

    async def there() -> bool:
        return any(cluster.state.glob(f"{_CHECKPOINTS}/commits/{epoch}"))

    await until(there, f"micro-batch {epoch}", timeout=timeout, pause=0.01)


@contextlib.asynccontextmanager
async def watched(cluster: Cluster) -> AsyncIterator[Commits]:
    """Collect what the only running job commits while the block runs, in all of its attempts.

    The log keeps the last 50 entries. An attempt may have the directory of the previous one, or a restored copy.
    """
    found: Commits = {}
    began = time.time()

    def look() -> None:
        for log in cluster.state.glob("taskmanagers/*/state/attempts/*/*/commits"):
            found.update((epoch, at) for epoch, at in commits(log.parent).items() if at >= began)

    async with _looking(look, 0.1):
        yield found


@contextlib.asynccontextmanager
async def _looking(look: Callable[[], None], pause: float) -> AsyncIterator[None]:
    async def look_on() -> None:
        while True:
            with contextlib.suppress(FileNotFoundError):  # a directory was deleted meanwhile: retry later
                await asyncio.to_thread(look)
            await asyncio.sleep(pause)

    async with beside("looker", look_on()):
        yield
