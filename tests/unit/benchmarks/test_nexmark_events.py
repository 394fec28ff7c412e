"""The events of the benchmark Nexmark have its proportions and distributions, whatever the seed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.nexmark.events import AUCTION, BID, PERSON, ROUND, Events

SEEDS = range(3)
NUMBER = 20_000


def drawn(seed: int, number: int = NUMBER) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Events(number, seed=seed).lines()]


@pytest.mark.parametrize("seed", SEEDS)
def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_are_bids(seed: int) -> None:
    kinds = [event["kind"] for event in drawn(seed)]
    assert kinds[:5] == [PERSON, AUCTION, AUCTION, AUCTION, BID]
    assert Counter(kinds) == {PERSON: NUMBER // 50, AUCTION: NUMBER // 50 * 3, BID: NUMBER // 50 * 46}


@pytest.mark.parametrize("seed", SEEDS)
def test_ids_are_those_of_people_and_auctions_that_are_there_or_soon_will_be(seed: int) -> None:
    """At most ten ids are ahead, so a bid may come before its auction."""
    people = auctions = 999
    for event in drawn(seed):
        if event["kind"] == PERSON:
            assert event["person"]["id"] == (people := people + 1)
        elif event["kind"] == AUCTION:
            assert event["auction"]["id"] == (auctions := auctions + 1)
            assert 1000 <= event["auction"]["seller"] <= people + 10
            assert event["auction"]["expires"] > event["dateTime"]
        else:
            assert 1000 <= event["bid"]["auction"] <= auctions + 10
            assert 1000 <= event["bid"]["bidder"] <= people + 10


@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_the_bids_are_for_hot_auctions_and_most_come_from_hot_bidders(seed: int) -> None:
    bids = [event["bid"] for event in drawn(seed) if event["kind"] == BID]
    hot = sum(bid["auction"] % 100 == 0 for bid in bids) / len(bids)
    assert 0.48 < hot < 0.53
    assert 0.73 < sum(bid["bidder"] % 100 == 1 for bid in bids) / len(bids) < 0.78
    prices = sorted(bid["price"] for bid in bids)
    assert prices[0] >= 100
    assert prices[-1] <= 10**8
    assert 80_000 < prices[len(prices) // 2] < 125_000  # the middle of 10^2 and 10^8 is 10^5


@pytest.mark.parametrize("seed", SEEDS)
def test_events_have_their_average_sizes(seed: int) -> None:
    """100 bytes are a bid's own; its channel and URL come on top, as in the benchmark."""
    extras = [len(event["bid"]["extra"]) for event in drawn(seed) if event["kind"] == BID]
    assert 66 < sum(extras) / len(extras) < 70
    assert (min(extras), max(extras)) == (54, 81)


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    """Several engines read the same input; a file is a micro-batch, in the order of the events."""
    events = Events(10 * ROUND + 1, seed=7)
    assert events.write(tmp_path / "a", 4 * ROUND) == events.write(tmp_path / "b", 4 * ROUND) == 3
    for name in ("00000.json", "00001.json", "00002.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    files = sorted((tmp_path / "a").iterdir(), key=lambda path: path.stat().st_mtime)
    assert "".join(path.read_text() for path in files) == "".join(events.lines())
