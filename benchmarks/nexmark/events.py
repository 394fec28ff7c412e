"""The events of Nexmark: people, their auctions, and bids, in the proportions and distributions of the benchmark.

Of 50 events in a row one is a person, three are auctions and 46 are bids. Half of the bids go to the newest hot
auction, three quarters of them come from a hot bidder, and three quarters of the auctions belong to a hot seller.
Prices are spread evenly over the powers of ten from 10^2 to 10^8. The rules are those of the generator of
github.com/nexmark/nexmark of December 2025, with its default settings.

It differs in three things. The same seed gives the same events, so that several engines read the same input. The time
of an event is a column of its own, beside the person, auction or bid. And the id of a bidder is that of a person:
there, the first id is added twice.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

PEOPLE, AUCTIONS, BIDS = 1, 3, 46  # of each 50 events, in this order
ROUND = PEOPLE + AUCTIONS + BIDS
EPOCH_MS = 1_767_225_600_000  # 2026-01-01
SCHEMA = (
    "kind INT, dateTime TIMESTAMP, "
    "person STRUCT<id: BIGINT, name: STRING, emailAddress: STRING, creditCard: STRING, city: STRING, state: STRING, "
    "extra: STRING>, "
    "auction STRUCT<id: BIGINT, itemName: STRING, description: STRING, initialBid: BIGINT, reserve: BIGINT, "
    "expires: TIMESTAMP, seller: BIGINT, category: BIGINT, extra: STRING>, "
    "bid STRUCT<auction: BIGINT, bidder: BIGINT, price: BIGINT, channel: STRING, url: STRING, extra: STRING>"
)
PERSON, AUCTION, BID = range(3)  # `kind`

_FIRST_ID = 1000  # of people, and of auctions
_LEAD = 10  # ids that do not exist yet, but soon will
_HOT = 100  # one of so many people, or auctions, is a hot one
_IN_FLIGHT = 100  # auctions that still get bids
_ACTIVE = 1000  # people
_FIRST_CATEGORY, _CATEGORIES = 10, 5
_HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_CHANNELS = 10_000
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_SIZES = {"person": 200, "auction": 500, "bid": 100}  # average bytes of an event
_TEXT = 1 << 20  # characters from which `extra` is cut


@dataclass(frozen=True)
class Events:
    """`number` events of one seed, `rate` of them in a second of event time."""

    number: int
    rate: int = 10_000
    seed: int = 0

    def write(self, directory: Path, per_file: int) -> int:
        """Write them as JSON lines, in files that Spark reads in the order of the events. Return how many files."""
        directory.mkdir(parents=True)
        lines, count = self.lines(), 0
        for first in range(0, self.number, per_file):
            path = directory / f"{count:05d}.json"
            with path.open("w") as file:
                for _, line in zip(range(min(per_file, self.number - first)), lines, strict=False):
                    file.write(line)
            os.utime(path, (EPOCH_MS // 1000 + count,) * 2)
            count += 1
        return count

    def lines(self) -> Iterator[str]:
        """Yield each event as a line of JSON."""
        drawn = _Drawn(np.random.default_rng(self.seed), self.rate)
        for event in range(self.number):
            offset = event % ROUND
            at_ms = event * 1000 // self.rate
            if offset < PEOPLE:
                kind, name, found = PERSON, "person", drawn.person(event)
            elif offset < PEOPLE + AUCTIONS:
                kind, name, found = AUCTION, "auction", drawn.auction(event, at_ms)
            else:
                kind, name, found = BID, "bid", drawn.bid(event)
            yield json.dumps({"kind": kind, "dateTime": _iso(at_ms), name: found}, separators=(",", ":")) + "\n"


class _Drawn:
    """Draws events. Random numbers are drawn in blocks: one at a time would take most of the time."""

    def __init__(self, rng: np.random.Generator, rate: int) -> None:
        self._rng = rng
        self._rate = rate
        self._numbers: Iterator[float] = iter(())
        letters = rng.integers(ord("a"), ord("z") + 1, _TEXT, dtype=np.uint8)
        self._text = letters.tobytes().decode()
        letters[rng.random(_TEXT) < 1 / 13] = ord(" ")
        self._words = letters.tobytes().decode()
        self._hot_urls = [self._url() for _ in _HOT_CHANNELS]
        self._channels = [(f"channel-{i}", self._channel_url(i)) for i in range(_CHANNELS)]

    def person(self, event: int) -> dict[str, object]:
        found: dict[str, object] = {
            "id": _last_person(event) + _FIRST_ID,
            "name": f"{self._one_of(_FIRST_NAMES)} {self._one_of(_LAST_NAMES)}",
            "emailAddress": f"{self._string(7)}@{self._string(5)}.com",
            "creditCard": " ".join(f"{self._below(10_000):04d}" for _ in range(4)),
            "city": self._one_of(_CITIES),
            "state": self._one_of(_STATES),
        }
        return found | {"extra": self._extra("person", 8 + sum(len(str(v)) for k, v in found.items() if k != "id"))}

    def auction(self, event: int, at_ms: int) -> dict[str, object]:
        seller = _last_person(event) // _HOT * _HOT if self._below(4) > 0 else self._person_near(event)
        initial, name, description = self._price(), self._string(20), self._string(100)
        horizon_ms = _IN_FLIGHT * ROUND // AUCTIONS * 1000 // self._rate  # in it, as many auctions begin
        return {
            "id": _last_auction(event) + _FIRST_ID,
            "itemName": name,
            "description": description,
            "initialBid": initial,
            "reserve": initial + self._price(),
            "expires": _iso(at_ms + 1 + self._below(max(2 * horizon_ms, 1))),
            "seller": seller + _FIRST_ID,
            "category": _FIRST_CATEGORY + self._below(_CATEGORIES),
            "extra": self._extra("auction", 48 + len(name) + len(description)),
        }

    def bid(self, event: int) -> dict[str, object]:
        last = _last_auction(event)
        if self._below(2) > 0:
            auction = max(last, 0) // _HOT * _HOT
        else:
            first = max(last - _IN_FLIGHT, 0)
            auction = first + self._below(last - first + 1 + _LEAD)
        bidder = _last_person(event) // _HOT * _HOT + 1 if self._below(4) > 0 else self._person_near(event)
        if self._below(2) > 0:
            hot = self._below(len(_HOT_CHANNELS))
            channel, url = _HOT_CHANNELS[hot], self._hot_urls[hot]
        else:
            channel, url = self._one_of(self._channels)
        return {
            "auction": auction + _FIRST_ID,
            "bidder": bidder + _FIRST_ID,
            "price": self._price(),
            "channel": channel,
            "url": url,
            "extra": self._extra("bid", 32),
        }

    def _person_near(self, event: int) -> int:
        people = _last_person(event) + 1
        active = min(people, _ACTIVE)
        return people - active + self._below(active + _LEAD)

    def _price(self) -> int:
        return round(math.pow(10, self._uniform() * 6) * 100)

    def _extra(self, what: str, size: int) -> str:
        """Return what fills the event up to its average size, a fifth more or less."""
        missing = _SIZES[what] - size
        if missing <= 0:
            return ""
        spread = round(missing * 0.2)
        length = missing - spread + (self._below(2 * spread) if spread else 0)
        at = self._below(_TEXT - length)
        return self._text[at : at + length]

    def _string(self, longest: int) -> str:
        length = 3 + self._below(longest - 3)
        at = self._below(_TEXT - length)
        return self._words[at : at + length].strip()

    def _url(self) -> str:
        folders = "/".join(self._string(5).replace(" ", "_") or "_" for _ in range(3))
        return f"https://www.nexmark.com/{folders}/item.htm?query=1"

    def _channel_url(self, channel: int) -> str:
        url = self._url()
        return f"{url}&channel_id={_reversed(channel)}" if self._below(10) > 0 else url

    def _one_of(self, choices: Sequence[T]) -> T:
        return choices[self._below(len(choices))]

    def _below(self, limit: int) -> int:
        return int(self._uniform() * limit)

    def _uniform(self) -> float:
        found = next(self._numbers, None)
        if found is None:
            block: NDArray[np.float64] = self._rng.random(1 << 16)
            self._numbers = iter(block.tolist())
            found = next(self._numbers)
        return found


def _last_person(event: int) -> int:
    """Return the number of the person that is the latest when this event happens."""
    return event // ROUND * PEOPLE + min(event % ROUND, PEOPLE - 1)


def _last_auction(event: int) -> int:
    """Return the number of the latest auction; -1: there is none yet."""
    turn, offset = divmod(event, ROUND)
    return turn * AUCTIONS + min(offset - PEOPLE, AUCTIONS - 1)


def _reversed(number: int) -> int:
    """Return the absolute value of the number with its 32 bits in reverse order, as Java has it."""
    found = int(f"{number:032b}"[::-1], 2)
    return abs(found - (1 << 32) if found >> 31 else found)


def _iso(at_ms: int) -> str:
    at = datetime.fromtimestamp((EPOCH_MS + at_ms) / 1000, UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
