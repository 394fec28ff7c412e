"""The gate before the first micro-batch of a query's run."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from minflinkd.taskmanager.session.query.run import Gate, SparkRun
from minflinkd.taskmanager.session.spark.failures import QueryEnded


@dataclass
class Stores:
    """State stores by run id."""

    done: list[str] = field(default_factory=list)
    failing: bool = False

    def hand_over(self, run_id: str, to: str) -> int:
        if self.failing:
            raise RuntimeError("no such stores")
        self.done.append(f"{run_id} -> {to}")
        return 1

    def forget(self, run_id: str) -> None:
        self.done.append(f"forget {run_id}")

    def close(self, run_id: str) -> bool:
        self.done.append(f"close {run_id}")
        return True


@dataclass
class World:
    stores: Stores = field(default_factory=Stores)
    stopped: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = Gate(self.stores)  # type: ignore[arg-type]

    def run(self, name: str) -> SparkRun:
        java = SimpleNamespace(
            runId=lambda: SimpleNamespace(toString=lambda: name), stop=lambda: self.stopped.append(name)
        )
        return SparkRun(SimpleNamespace(_jsq=java))  # type: ignore[arg-type]


def test_a_micro_batch_waits_until_the_run_has_its_stores() -> None:
    """Otherwise Spark would open stores of its own (H4)."""
    world, seen = World(), list[Any]()
    batch = threading.Thread(target=lambda: seen.append((world.gate.run().id, list(world.stores.done))))

    def start() -> SparkRun:
        batch.start()  # Spark's thread is there before the start has returned
        return world.run("new")

    world.gate.start(start, "old")
    batch.join(10)
    assert seen == [("new", ["old -> new", "forget old"])]


def test_a_run_that_begins_anew_gets_no_stores() -> None:
    world = World()
    world.gate.start(lambda: world.run("new"), None)
    assert (world.gate.run().id, world.stores.done) == ("new", [])


def test_a_run_whose_stores_do_not_come_is_stopped_and_its_micro_batch_fails() -> None:
    """It must not process rows in an empty state."""
    world, seen = World(Stores(failing=True)), list[str]()

    def process() -> None:
        with pytest.raises(QueryEnded):
            world.gate.run()
        seen.append("failed")

    batch = threading.Thread(target=process)

    def start() -> SparkRun:
        batch.start()
        return world.run("new")

    with pytest.raises(RuntimeError, match="no such stores"):
        world.gate.start(start, "old")
    batch.join(10)
    assert (seen, world.stopped, world.stores.done) == (["failed"], ["new"], ["close new"])
    assert world.gate.run_if_started() is None


def test_nobody_is_taken_for_the_run_before_while_the_next_one_starts() -> None:
    world = World()
    world.gate.start(lambda: world.run("first"), None)

    def broken() -> SparkRun:
        raise RuntimeError("no Spark")

    with pytest.raises(RuntimeError, match="no Spark"):
        world.gate.start(broken, None)
    with pytest.raises(QueryEnded):
        world.gate.run()
