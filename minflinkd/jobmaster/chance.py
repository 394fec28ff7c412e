"""The randomness that a job's decisions may use. It is injected, so that a seed repeats a run exactly."""

from __future__ import annotations

import random
from dataclasses import dataclass

from minflinkd.runtime.ids import IdSource


@dataclass(frozen=True)
class Chance:
    ids: IdSource
    rng: random.Random
