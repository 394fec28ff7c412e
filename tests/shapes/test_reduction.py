"""From a shape that goes wrong to a small job of its own, without Spark: the tests pass in how a shape is played."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from minflinkd.jobgraph.validation import parse_job
from tests.shapes.drawing import draw
from tests.shapes.job_files import write_job_of
from tests.shapes.playing import Verdict
from tests.shapes.reduction import reduced
from tests.shapes.shape import Shape
from tests.shapes.windows import Window


async def test_what_does_not_matter_is_left_out() -> None:
    """If every shape with a tumbling window goes wrong, only a source, the window and a sink are left."""

    async def attempt(shapes: list[Shape]) -> list[Verdict]:
        await asyncio.sleep(0)
        return [Verdict(shape, "wrong rows" if _window(shape) else "exact", "3 missing") for shape in shapes]

    for seed in range(40):
        shape = draw(seed)
        if not _window(shape) or shape.refused:
            continue
        wrong = Verdict(shape, "wrong rows", "17 rows missing")
        found = (await reduced(wrong, attempt, seconds=60, tell=lambda _: None)).shape
        assert [node.operator.name for node in found.nodes][-1] == "Window tumbling", seed
        assert len(found.nodes) <= 2 + len(shape.done), seed
        assert len(found.sinks) == 1
        assert found.parallelism == 1


def test_the_smallest_shape_is_written_as_a_job_of_its_own(tmp_path: Path) -> None:
    """The job file is valid, and comes with its input and the rows that the job must write."""
    for seed in (0, 2, 7):
        shape = draw(seed)
        file = write_job_of(shape, tmp_path / str(seed))
        parse_job(json.loads(file.read_text()), base=file.parent)
        wanted = json.loads((tmp_path / str(seed) / "wanted.json").read_text())
        assert wanted.keys() == {sink.id for sink in shape.all_sinks}
        assert all(wanted.values())


def _window(shape: Shape) -> bool:
    return any(isinstance(node.operator, Window) and not node.operator.slide for node in shape.nodes)
