"""What `python -m tests.shapes` says at its end, and its exit code; without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shapes import __main__ as program
from tests.shapes.__main__ import run, summary
from tests.shapes.drawing import draw
from tests.shapes.playing import Verdict
from tests.shapes.shape import Shape

GOOD = [
    Verdict(draw(0), "exact"),
    Verdict(draw(1), "refused", "two sinks write to one path"),
    Verdict(draw(2), "exact"),
]


def test_where_all_is_well_the_exit_code_is_0_and_the_kinds_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A job that is refused as it should be is well, and what it was refused for is told."""
    assert summary(GOOD, 61.4) == 0
    assert capsys.readouterr().out.splitlines() == [
        "3 seeds in 61 s: 2 exact, 1 refused",
        "  1 refused: two sinks write to one path",
    ]


@pytest.mark.parametrize("kind", ["wrong rows", "failed", "stuck", "accepted", "refused without need", "not played"])
def test_one_shape_that_is_wrong_makes_the_exit_code_1_and_is_told_with_its_seed(
    capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Whatever is neither exact nor refused is wrong: nobody has to list the kinds."""
    assert summary([Verdict(draw(17), kind, "sink out: 3 rows missing"), *GOOD], 61.4) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[0] == f"4 seeds in 61 s: 2 exact, 1 {kind}, 1 refused"
    assert told[-1] == f"  seed 17 {kind}: sink out: 3 rows missing"


def test_the_wrong_ones_are_told_by_seed_and_in_a_few_lines_each(capsys: pytest.CaptureFixture[str]) -> None:
    """They end in the order of chance; and a traceback names its error in the last line, which stays."""
    traceback = "Traceback\n" + "  File somewhere\n" * 100 + "ValueError: boom"
    assert summary([Verdict(draw(30), "failed", traceback), Verdict(draw(4), "wrong rows", "1 extra")], 1.0) == 1
    told = capsys.readouterr().out
    assert told.index("seed 4 wrong rows: 1 extra") < told.index("seed 30 failed: Traceback")
    assert told.endswith("ValueError: boom\n")
    assert len(told) < 600


@pytest.mark.parametrize(("wrong", "code"), [(None, 0), (2, 1)])
def test_the_exit_code_of_a_run_is_that_of_its_summary(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: int | None, code: int
) -> None:
    """Also where the seeds do not fit one cluster, and what is wrong is not among the last."""

    async def play(shapes: list[Shape], base: Path, note: Callable[[Verdict], None]) -> None:
        for shape in shapes:
            note(Verdict(shape, "wrong rows" if shape.seed == wrong else "exact"))

    monkeypatch.setattr(program, "play", play)
    monkeypatch.setattr(program, "PER_CLUSTER", 2)
    assert run(range(5), tmp_path, reduce=False) == code
