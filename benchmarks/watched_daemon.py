"""`minflinkd serve` with a watch on its event loop: every 10 ms, how late a due timer ran.

`python -m benchmarks.watched_daemon --state-dir DIR --config FILE` appends to `lag` beside the state directory, as
doubles, in seconds: the time of day, the lag, and the part of it in which the daemon itself did something. The rest of
the lag is time in which other processes had the processor.
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
SAMPLE = struct.Struct("ddd")
FILE = "lag"


@dataclass(frozen=True)
class Lag:
    """The event loop's lag over a period, in seconds."""

    p50: float
    p99: float
    max: float
    own_p99: float  # without the time in which other processes had the processor
    own_max: float

    def figures(self) -> dict[str, float]:
        """Return the lag in milliseconds, by the name of the figure."""
        names = {"p50": self.p50, "p99": self.p99, "max": self.max, "p99, own": self.own_p99, "max, own": self.own_max}
        return {f"event loop lag {name}": 1000 * value for name, value in names.items()}


def lag_between(base: Path, since: float, until: float) -> Lag:
    """Return the lag of the daemon with its state directory in `base`, between two times of day."""
    samples = [sample for sample in SAMPLE.iter_unpack((base / FILE).read_bytes()) if since <= sample[0] <= until]
    lags, own = sorted(lag for _, lag, _ in samples), sorted(own for _, _, own in samples)
    p99 = int(0.99 * len(samples))
    return Lag(lags[len(lags) // 2], lags[p99], lags[-1], own[p99], own[-1])


async def _watch(file: Path) -> None:
    loop = asyncio.get_running_loop()
    with file.open("ab", buffering=0) as out:
        while True:
            due, worked = loop.time() + INTERVAL, time.thread_time()
            await asyncio.sleep(INTERVAL)
            lag = max(0.0, loop.time() - due)
            out.write(SAMPLE.pack(time.time(), lag, min(lag, time.thread_time() - worked)))


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
