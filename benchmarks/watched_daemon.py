"""`minflinkd serve` with a watch on its event loop: every 10 ms, how late a due timer ran.

`python -m benchmarks.watched_daemon --state-dir DIR --config FILE` appends to `lag` beside the state directory: pairs
of doubles, the time of day and the lag, in seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from tests.beside import beside

INTERVAL = 0.01  # seconds
SAMPLE = struct.Struct("dd")
FILE = "lag"


@dataclass(frozen=True)
class Lag:
    """The event loop's lag over a period, in seconds."""

    p50: float
    p99: float
    max: float


def lag_between(base: Path, since: float, until: float) -> Lag:
    """Return the lag of the daemon with its state directory in `base`, between two times of day."""
    samples = SAMPLE.iter_unpack((base / FILE).read_bytes())
    found = sorted(lag for at, lag in samples if since <= at <= until)
    return Lag(found[len(found) // 2], found[int(0.99 * len(found))], found[-1])


async def _watch(file: Path) -> None:
    loop = asyncio.get_running_loop()
    with file.open("ab", buffering=0) as out:
        while True:
            due = loop.time() + INTERVAL
            await asyncio.sleep(INTERVAL)
            out.write(SAMPLE.pack(time.time(), max(0.0, loop.time() - due)))


async def _serve(state: Path, config: Path) -> None:
    from minflinkd.config import load_config
    from minflinkd.daemon_process import serve

    settings = load_config(config, os.environ, {"process.working-dir": str(state)})
    async with beside("watch on the event loop", _watch(state.parent / FILE)):
        await serve(settings, environ=os.environ, config_file=config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    options = parser.parse_args()
    from minflinkd.runtime import log

    log.configure(json=True)
    asyncio.run(_serve(options.state_dir.absolute(), options.config))


if __name__ == "__main__":
    main()
