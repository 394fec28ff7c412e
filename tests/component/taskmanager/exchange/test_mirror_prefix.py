"""Whatever fails, a mirror is always a prefix of its log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minflinkd.taskmanager.exchange.access import ExchangeUnreachable
from minflinkd.taskmanager.exchange.log import (
    DATA,
    ENTRIES,
    DataFile,
    Entry,
    LogWriter,
    begin_reading,
    mark_consumed,
    mark_covered,
    read_entry,
)
from minflinkd.taskmanager.exchange.mirror import Mirror
from tests.component.taskmanager.exchange.mirror_world import TASK, add, barrier, entries


class Flaky:
    """A log in a directory. Requests to it fail as `faults` says."""

    def __init__(self, log: LogWriter, faults: list[bool]) -> None:
        self._log = log
        self._faults = faults

    def _may_fail(self) -> None:
        if self._faults and self._faults.pop():
            raise ExchangeUnreachable("drawn")

    async def schema(self) -> str | None:
        self._may_fail()
        return "schema"

    async def entries(self, first: int) -> list[Entry]:
        self._may_fail()
        await asyncio.sleep(0.01)
        found = []
        while (entry := read_entry(self._log.directory, first + len(found))) is not None:
            found.append(entry)
        return found

    async def fetch(self, file: DataFile, target: Path) -> None:
        part = target.with_name(f".{target.name}.part")
        content = (self._log.directory / DATA / file.name).read_bytes()
        part.write_bytes(content[: len(content) // 2])
        self._may_fail()
        await asyncio.sleep(0.003)
        part.write_bytes(content)
        part.rename(target)

    async def begin(self, reader: str, position: int) -> None:
        self._may_fail()
        begin_reading(self._log.directory, reader, position)

    async def consumed(self, reader: str, position: int) -> None:
        self._may_fail()
        mark_consumed(self._log.directory, reader, position)

    async def covered(self, reader: str, position: int) -> None:
        self._may_fail()
        mark_covered(self._log.directory, reader, position)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.lists(st.integers(0, 50), max_size=3)),
        st.tuples(st.just("barrier"), st.just([])),
        st.tuples(st.just("consume"), st.integers(1, 5).map(lambda n: [n])),
        st.tuples(st.just("pass"), st.integers(1, 60).map(lambda n: [n])),
    ),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(first=st.integers(0, 3), steps=STEPS, faults=st.lists(st.booleans(), max_size=40), bound=st.integers(1, 120))
def test_a_mirror_is_always_a_prefix_of_its_log(
    tmp_path_factory: pytest.TempPathFactory,
    first: int,
    steps: list[tuple[str, list[int]]],
    faults: list[bool],
    bound: int,
) -> None:
    """Whatever fails, and however far behind the reader is, nothing is missing.

    In the end the mirror is complete (J8, J10).
    """
    base = tmp_path_factory.mktemp("prefix")
    log = LogWriter(base / "log", (TASK,), first=first)
    written: dict[int, Entry] = {}
    contents: dict[str, bytes] = {}
    here, position = base / "mirror", first

    def check() -> int:
        """Return how far the mirror has come."""
        there, end = set(entries(here)), position
        while end in there:
            entry = read_entry(here, end)
            assert entry == written[end]
            for file in entry.files:
                assert (here / DATA / file.name).read_bytes() == contents[file.name]
            end += 1
        assert not any(number >= end for number in there)
        return end

    async def run() -> None:
        nonlocal position
        mirror = Mirror(Flaky(log, faults), here, reader=TASK, first=first, max_backlog=bound, patience=1e9)
        task = asyncio.create_task(mirror.run())
        try:
            await asyncio.sleep(0.01)
            for kind, numbers in steps:
                if kind == "data":
                    sequence = log.next
                    written[sequence] = add(log, *(b"x" * n for n in numbers))
                    for file in written[sequence].files:
                        contents[file.name] = (log.directory / DATA / file.name).read_bytes()
                elif kind == "barrier":
                    sequence = log.next
                    written[sequence] = barrier(log, sequence)
                elif kind == "consume" and (here / ENTRIES).exists():
                    position = min(position + numbers[0], check())
                    mark_consumed(here, TASK, position)
                    log.backlog()
                else:
                    await asyncio.sleep(numbers[0] / 1000 if numbers else 0.0)
                check()
            faults.clear()
            for _ in range(10_000):
                if position == log.next:
                    break
                position = check()
                mark_consumed(here, TASK, position)
                await asyncio.sleep(0.02)
            assert position == log.next
        finally:
            task.cancel()
            await asyncio.wait({task})

    loop = looptime.new_event_loop()
    try:
        loop.run_until_complete(run())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
