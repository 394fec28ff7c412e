"""The slot protocol over many seeds: no rule ever breaks, and after the faults everything settles (R30)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from tests.sim.protocol.drawing import drawn
from tests.sim.protocol.planted import FAULTS
from tests.sim.protocol.run import attempt, kind, reduced, run

CHUNK = 50
SEEDS = 400  # `python -m tests.sim --seeds 0-9999` runs more
FEW = 150  # of them in `make test`
REPEATED = (5, 18, 48, 97)


@pytest.mark.parametrize(
    "first", [pytest.param(n, marks=pytest.mark.slow if n >= FEW else []) for n in range(0, SEEDS, CHUNK)]
)
def test_no_rule_breaks_in_these_seeds(first: int) -> None:
    """No rule of the slot protocol breaks in any of these seeds (R30)."""
    for seed in range(first, first + CHUNK):
        verdict = run(seed)
        assert not verdict.violation, "\n".join(verdict.story)


def story_of(seed: int) -> str:
    return hashlib.sha256("\n".join(attempt(drawn(seed), told=True).story).encode()).hexdigest()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_tells_the_same_story_in_every_process(hash_seed: str) -> None:
    """A failing seed reproduces the run exactly (R30)."""
    told = f"from tests.sim.protocol.test_seeds import story_of; print(*map(story_of, {REPEATED}))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", told]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [story_of(seed) for seed in REPEATED]


def test_seeds_differ() -> None:
    assert len({story_of(seed) for seed in range(5)}) == 5


def test_a_broken_rule_is_told_with_the_settings_and_without_the_faults_that_it_does_not_need() -> None:
    """The story is readable (R30)."""
    fault = FAULTS["the RM marks slots taken after it has asked for them"]
    plan = next(plan for plan in map(drawn, range(100)) if len(plan.faults) > 3)
    broken = attempt(plan, fault)
    verdict = reduced(plan, broken, fault)
    assert kind(verdict.violation) == kind(broken.violation)
    assert not any(line.startswith(("Storm", "Cut", "Crash", "Ambush")) for line in verdict.story)
    assert f"seed: {plan.seed}" in verdict.story
    assert verdict.story[-1] == f"broken: {verdict.violation}"
    assert any(" -> " in line for line in verdict.story)
