"""Election, fencing and adoption over many seeds: no rule ever breaks, and after the faults all jobs run (A18)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from tests.sim.election.drawing import drawn
from tests.sim.election.run import attempt, run

CHUNK = 25
SEEDS = 150  # `python -m tests.sim --election --seeds 0-9999` runs more
FEW = 50  # of them in `make test`
REPEATED = (1, 2)


@pytest.mark.parametrize(
    "first", [pytest.param(n, marks=pytest.mark.slow if n >= FEW else []) for n in range(0, SEEDS, CHUNK)]
)
def test_no_rule_breaks_in_these_seeds(first: int) -> None:
    """No rule of the election, of fencing or of adoption breaks in any of these seeds (A11, A11a, A11b, A14a, A18)."""
    for seed in range(first, first + CHUNK):
        verdict = run(seed)
        assert not verdict.violation, "\n".join(verdict.story)


def story_of(seed: int) -> str:
    return hashlib.sha256("\n".join(attempt(drawn(seed), told=True).story).encode()).hexdigest()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_tells_the_same_story_in_every_process(hash_seed: str) -> None:
    """A failing seed reproduces the run exactly, with the real asyncio code in it (A18)."""
    told = f"from tests.sim.election.test_seeds import story_of; print(*map(story_of, {REPEATED}))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", told]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == [story_of(seed) for seed in REPEATED]
