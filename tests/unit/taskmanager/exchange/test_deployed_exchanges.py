"""Where a deployed task reads and writes its exchanges, and which exchange logs are deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.attempts.deployment import (
    exchange_directory,
    exchanges,
    remove_exchanges,
)
from minflinkd.taskmanager.exchange.access import ExchangeUnreachable
from minflinkd.taskmanager.exchange.log import LogWriter
from minflinkd.taskmanager.exchange.mirrors import Mirrors
from tests.unit.taskmanager.exchange.deployed import (
    FAR,
    NEAR,
    READER,
    SOURCE,
    TASK,
    deployment,
    mirroring,
    run,
)


@pytest.fixture
async def mirrors() -> AsyncIterator[Mirrors]:
    async with mirroring() as mirrors:
        yield mirrors


async def test_a_task_without_exchanges_has_none(mirrors: Mirrors, tmp_path: Path) -> None:
    asked = await run(mirrors, tmp_path, deployment(SOURCE))
    assert (asked.inputs, asked.output, len(mirrors)) == ((), None, 0)


async def test_an_input_elsewhere_needs_an_address(mirrors: Mirrors, tmp_path: Path) -> None:
    with pytest.raises(ExchangeUnreachable, match="tm-there has not said"):
        await run(mirrors, tmp_path, deployment(TASK))


async def test_only_logs_of_the_dead_are_removed_and_none_that_is_begun_meanwhile(tmp_path: Path) -> None:
    """`remove_exchanges` lists the logs first and asks afterwards which attempts live, so no new log is removed."""
    for attempt in (NEAR, FAR):
        LogWriter(exchange_directory(tmp_path, attempt), ())
    alive = {NEAR}

    def live() -> frozenset[AttemptId]:
        alive.add(READER)
        LogWriter(exchange_directory(tmp_path, READER), ())
        return frozenset(alive)

    await remove_exchanges(tmp_path, live)
    await remove_exchanges(tmp_path, live)
    assert {path.name for path in exchanges(tmp_path).iterdir()} == {NEAR, READER}
    await remove_exchanges(tmp_path / "nothing", frozenset)
