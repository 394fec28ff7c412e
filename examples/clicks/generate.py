"""Writes the clicks and purchases of a made-up shop as event files, JSON lines.

    python examples/clicks/generate.py DIRECTORY [--files 12] [--seed 1]

The files from `DIRECTORY/clicks/clicks-000.json` on hold ten minutes of clicks each, `DIRECTORY/purchases/` the
purchases of the same minutes. One click in eight is delivered again up to four minutes later, in the same file or the
next one. Events are up to two minutes out of order, so that none is late with a watermark delay of ten minutes. The
same seed writes the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2026, 3, 1, 8, 0, tzinfo=UTC)
SPAN = 600  # seconds per file
CLICKS = 120  # per file, without duplicates
USERS = 40
CAMPAIGNS = ("spring", "newsletter", "search", "")

Event = tuple[float, dict[str, Any]]  # time of delivery, in seconds after START; the event


def events(files: int, seed: int) -> dict[str, list[Event]]:
    """Return all clicks and purchases, by the name of their directory."""
    chance = random.Random(seed)
    clicks: list[Event] = []
    purchases: list[Event] = []
    for number in range(files * CLICKS):
        at = number * SPAN / CLICKS
        user = f"u{chance.randrange(USERS):02}"
        click = {"click_id": number, "user": user, "url": _url(chance), "time": _time(at)}
        delivered = at + chance.uniform(0, 120)
        clicks.append((delivered, click))
        if chance.random() < 0.125:
            clicks.append((delivered + chance.uniform(0, 240), click))
        if chance.random() < 0.2:
            bought = at + chance.uniform(10, 2400)  # some of them more than half an hour after the click
            purchase = {"order_id": number, "user": user, "amount": chance.randrange(5, 200), "time": _time(bought)}
            purchases.append((bought + chance.uniform(0, 120), purchase))
    return {"clicks": sorted(clicks, key=_delivery), "purchases": sorted(purchases, key=_delivery)}


def write(directory: Path, files: int = 12, seed: int = 1) -> None:
    """Write events by the time of their delivery, one file per ten minutes. The last file has all that come later."""
    for name, delivered in events(files, seed).items():
        (directory / name).mkdir(parents=True, exist_ok=True)
        for number in range(files):
            last = number == files - 1
            lines = [json.dumps(e) for at, e in delivered if _in_file(at, number, last=last)]
            file = directory / name / f"{name}-{number:03}.json"
            file.write_text("".join(line + "\n" for line in lines))
            mtime = START.timestamp() + number  # Spark reads files in the order of their modification times
            os.utime(file, (mtime, mtime))


def _in_file(at: float, number: int, *, last: bool) -> bool:
    return number * SPAN <= at and (last or at < (number + 1) * SPAN)


def _delivery(event: Event) -> float:
    return event[0]


def _url(chance: random.Random) -> str:
    campaign = chance.choice(CAMPAIGNS)
    return f"https://shop.example/item/{chance.randrange(30)}" + (f"?utm_campaign={campaign}" if campaign else "")


def _time(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write clicks and purchases as event files.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--files", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    write(arguments.directory, arguments.files, arguments.seed)
    sys.stdout.write(f"{arguments.files} files of clicks and of purchases written to {arguments.directory}\n")


if __name__ == "__main__":
    main()
