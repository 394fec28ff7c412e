"""Processes that kill themselves between two steps, at the point that a fault test names."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from minflinkd.runtime import crash_points
from minflinkd.runtime.crash_points import VARIABLE, CrashPoint, UnusableCrashPoint, parse, reach

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.parametrize("text", ["", "nothing", "upload:0", "upload:x", "upload:-1", ":3", "directory"])
def test_what_names_no_point_is_refused(text: str) -> None:
    with pytest.raises(UnusableCrashPoint):
        parse(text)


def test_points_are_named_with_or_without_a_count() -> None:
    assert parse("upload") == (CrashPoint.UPLOAD, 1)
    assert parse("upload:12") == (CrashPoint.UPLOAD, 12)
    assert parse("/run/points") == Path("/run/points")


def test_nothing_happens_where_nobody_asked_for_it() -> None:
    """The code is in the path of every checkpoint in production."""
    assert VARIABLE not in os.environ
    assert crash_points._armed is None
    for point in CrashPoint:
        reach(point)


def test_every_point_is_passed_by_the_programs() -> None:
    """A fault test with a point that no program reaches would never strike."""
    sources = [
        path.read_text(encoding="utf-8")
        for path in (REPOSITORY / "minflinkd").rglob("*.py")
        if path.name != "crash_points.py"
    ]
    passed = {name for source in sources for name in re.findall(r"reach\(CrashPoint\.([A-Z_]+)\)", source)}
    assert passed == {point.name for point in CrashPoint}
