"""What a test gives to a job, and in which order the job gets it."""

from __future__ import annotations

from pathlib import Path

from minflinkd.testing.feed import Feed, Given, placed, places, taken_back
from minflinkd.testing.types import parse

SCHEMA = parse("struct<n:int>")


def add(feed: Feed, source: str, *numbers: int) -> None:
    feed.add(source, [{"n": n} for n in numbers], SCHEMA)


def test_the_first_feeds_of_all_sources_come_together(tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    add(feed, "a", 1)
    add(feed, "a", 2)
    add(feed, "b", 3)
    found = [[(batch.source, batch.rows) for batch in batches] for batches in feed.rounds()]
    assert found == [[("a", ({"n": 1},)), ("b", ({"n": 3},))], [("a", ({"n": 2},))]]
    assert feed.rounds() == []


def test_files_are_read_in_the_order_in_which_they_were_fed(tmp_path: Path) -> None:
    """Spark sorts files by their times."""
    feed = Feed(tmp_path)
    add(feed, "a", 1)
    add(feed, "a", 2)
    first, second = (batches[0].file for batches in feed.rounds())
    assert first.stat().st_mtime < second.stat().st_mtime


def test_a_file_is_hidden_until_the_step_moves_it_and_can_be_taken_back(tmp_path: Path) -> None:
    feed = Feed(tmp_path / "fed")
    add(feed, "a", 1)
    given = Given(feed.rounds()[0])
    homes = places(tmp_path / "sources", ["a"])
    homes["a"].mkdir(parents=True)
    for _ in range(2):  # a job that was killed gets the same files again
        ((hidden, name),) = placed(given, homes).files["a"]
        assert hidden.name.startswith("_")
        assert not name.exists()
        hidden.rename(name)
        taken_back([given], homes)
        assert list(homes["a"].iterdir()) == []


def test_a_run_without_the_source_gets_nothing_of_it(tmp_path: Path) -> None:
    feed = Feed(tmp_path)
    add(feed, "a", 1)
    assert placed(Given(feed.rounds()[0]), {}).files == {}
