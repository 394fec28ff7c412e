"""Jobs of every shape run, or are refused with a reason: the first seeds of `python -m tests.shapes`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shapes.__main__ import told
from tests.shapes.campaign import play
from tests.shapes.drawing import draw
from tests.shapes.planted import FAULTS, find
from tests.shapes.playing import Verdict

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="function")]

FEW, MORE = range(2), range(2, 16)  # `make shapes` plays a thousand


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seeds", [FEW, pytest.param(MORE, marks=pytest.mark.slow)], ids=str)
async def test_jobs_of_every_shape_write_what_their_batch_has_or_are_refused_with_a_reason(
    tmp_path: Path, seeds: range
) -> None:
    """The output is right through raising functions, kills, hot restarts, and savepoints restored elsewhere."""
    verdicts = await play([draw(seed) for seed in seeds], tmp_path, _tell)
    assert len(verdicts) == len(seeds)
    wrong = [verdict for verdict in verdicts if not verdict.good]
    stories = ["\n".join([f"{v.kind}: {v.why}", *v.story, told(v.shape)]) for v in wrong]
    assert not wrong, "\n\n".join(stories)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", FAULTS)
async def test_a_planted_fault_is_found(name: str) -> None:
    """Jobs that only hang show nothing: a busy machine does that, too."""
    told = await find(FAULTS[name])
    assert told
    assert "stuck" not in told


def _tell(verdict: Verdict) -> None:
    print(f"seed {verdict.shape.seed}: {verdict.kind} {verdict.why}", flush=True)
