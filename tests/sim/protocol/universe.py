"""What all parties of one run share: virtual time, randomness, the network and the story."""

from __future__ import annotations

import random

from tests.sim.protocol.engine import Engine
from tests.sim.protocol.journal import Journal
from tests.sim.protocol.wire import Wire


class Universe:
    def __init__(self, seed: int | str, *, encoded: bool = False) -> None:
        """With `encoded`, every message is encoded and decoded on its way. That takes time and changes nothing."""
        self.rng = random.Random(seed)
        self.engine = Engine()
        self.journal = Journal()
        self.wire = Wire(self.engine, self.rng, self.journal, encoded=encoded)

    @property
    def now(self) -> float:
        return self.engine.now

    def note(self, text: str, *values: object) -> None:
        self.journal.note(self.engine.now, text, *values)
