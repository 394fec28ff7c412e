"""Writes Nexmark's persons, auctions and bids as event files, JSON lines.

    python examples/nexmark/generate.py DIRECTORY [--events 3000] [--files 6] [--seed 1]

As in Nexmark, of 50 events one is a person, three are auctions and 46 are bids. There are ten events per second, from
half a minute before midnight UTC. Events are delivered up to two seconds late, so that none is dropped with Nexmark's
watermark delay of four seconds. No auction is open longer than a minute. No two events have the same time, and no two
bids for an auction the same price, so that every query has exactly one correct answer. `side_input.csv` is the bounded
table of query 13. The same seed writes the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2026, 2, 28, 23, 59, 30, tzinfo=UTC)
GAP = 0.1  # seconds from one event to the next
DISORDER = 2.0  # seconds
FIRST_ID = 1000  # of persons and of auctions
LONGEST_AUCTION = 60  # seconds
CATEGORIES = range(10, 15)
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
LETTERS = "abcdefghijklmnopqrstuvwxyz"

Event = dict[str, Any]


@dataclass
class Market:
    """The state from which the next event is drawn."""

    chance: random.Random
    persons: int = 0
    auctions: int = 0
    prices: set[tuple[int, int]] = field(default_factory=set)

    def event(self, number: int) -> tuple[str, Event]:
        at = START + timedelta(seconds=number * GAP)
        if number % 50 == 0:
            return "person", self._person(at)
        if number % 50 <= 3:
            return "auction", self._auction(at)
        return "bid", self._bid(at)

    def _person(self, at: datetime) -> Event:
        self.persons += 1
        name = f"{self.chance.choice(FIRST_NAMES)} {self.chance.choice(LAST_NAMES)}"
        return {
            "id": FIRST_ID + self.persons - 1,
            "name": name,
            "emailAddress": f"{self._text(7)}@{self._text(5)}.com",
            "creditCard": " ".join(f"{self.chance.randrange(10_000):04}" for _ in range(4)),
            "city": self.chance.choice(CITIES),
            "state": self.chance.choice(STATES),
            "dateTime": _time(at),
            "extra": self._text(20),
        }

    def _auction(self, at: datetime) -> Event:
        self.auctions += 1
        first = self._price()
        return {
            "id": FIRST_ID + self.auctions - 1,
            "itemName": self._text(12),
            "description": self._text(30),
            "initialBid": first,
            "reserve": first + self._price(),
            "dateTime": _time(at),
            "expires": _time(at + timedelta(seconds=self.chance.randint(2, LONGEST_AUCTION))),
            "seller": self._somebody(),
            "category": self.chance.choice(CATEGORIES),
            "extra": self._text(15),
        }

    def _bid(self, at: datetime) -> Event:
        auction = FIRST_ID + max(0, self.auctions - 1 - int(self.chance.expovariate(0.15)))
        price = self._price()
        while (auction, price) in self.prices:
            price += 1
        self.prices.add((auction, price))
        channel = self.chance.choice((*CHANNELS, f"channel-{self.chance.randrange(20)}"))
        path = "/".join(self._text(3) for _ in range(3))
        return {
            "auction": auction,
            "bidder": self._somebody(),
            "price": price,
            "channel": channel,
            "url": f"https://www.nexmark.com/{path}/item.htm?query=1&channel_id={self.chance.randrange(1000)}",
            "dateTime": _time(at),
            "extra": self._text(15),
        }

    def _somebody(self) -> int:
        """Return the id of a person. Recent persons are more active."""
        return FIRST_ID + max(0, self.persons - 1 - int(self.chance.expovariate(0.1)))

    def _price(self) -> int:
        return round(10 ** (self.chance.random() * 6) * 100)

    def _text(self, length: int) -> str:
        return "".join(self.chance.choice(LETTERS) for _ in range(length))


def write(directory: Path, events: int = 3000, files: int = 6, seed: int = 1) -> None:
    """Write `files` files of each kind, with events in the order of delivery."""
    market = Market(random.Random(seed))
    delivered: dict[str, list[tuple[float, Event]]] = {"person": [], "auction": [], "bid": []}
    for number in range(events):
        kind, event = market.event(number)
        delivered[kind].append((number * GAP + market.chance.uniform(0, DISORDER), event))
    span = (events * GAP + DISORDER) / files
    for kind, found in delivered.items():
        (directory / kind).mkdir(parents=True, exist_ok=True)
        found.sort(key=lambda event: event[0])
        for number in range(files):
            lines = [json.dumps(event) + "\n" for at, event in found if int(at / span) == number]
            file = directory / kind / f"{kind}-{number:03}.json"
            file.write_text("".join(lines))
            mtime = START.timestamp() + number  # Spark reads files in the order of their modification times
            os.utime(file, (mtime, mtime))
    side = "".join(f"{key},value of {key}\n" for key in range(FIRST_ID, FIRST_ID + 100))
    (directory / "side_input.csv").write_text(side)


def _time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write Nexmark's persons, auctions and bids as event files.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--events", type=int, default=3000)
    parser.add_argument("--files", type=int, default=6, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    write(arguments.directory, arguments.events, arguments.files, arguments.seed)
    sys.stdout.write(f"{arguments.events} events written to {arguments.directory}\n")


if __name__ == "__main__":
    main()
