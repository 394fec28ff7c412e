"""Operations that were triggered and take a while."""

from __future__ import annotations

import asyncio

import pytest

from minflinkd.dispatcher.operations import KEPT, Operations
from minflinkd.runtime.errors import Conflict, NotFound
from minflinkd.runtime.supervision import TaskOwner
from tests.waiting import until


async def ended(tasks: TaskOwner) -> None:
    await until(lambda: len(tasks) == 0)


async def test_an_operation_is_under_way_then_done_and_a_repeated_trigger_begins_nothing() -> None:
    """A client sends POST, then GET until the operation is COMPLETED (C24)."""
    tasks, end, begun = TaskOwner("test"), asyncio.Event(), 0
    operations = Operations(tasks)

    async def work() -> str:
        nonlocal begun
        begun += 1
        await end.wait()
        return "file:///savepoint"

    operations.begin(("job", "1"), work)
    operations.begin(("job", "1"), work)
    assert not operations.status(("job", "1")).done
    end.set()
    await ended(tasks)
    assert operations.status(("job", "1")).location == "file:///savepoint"
    assert begun == 1
    with pytest.raises(NotFound):
        operations.status(("job", "2"))


async def test_a_failed_operation_has_its_cause() -> None:
    """The cause has the error's code (C24)."""
    tasks = TaskOwner("test")
    operations = Operations(tasks)

    async def work() -> str:
        raise Conflict("it runs")

    operations.begin(("job", "1"), work)
    await ended(tasks)
    error = operations.status(("job", "1")).error
    assert error is not None
    assert error.code == "conflict"


async def test_the_oldest_that_have_ended_are_forgotten() -> None:
    """So memory is bounded."""
    tasks = TaskOwner("test")
    operations = Operations(tasks)

    async def work() -> str:
        return ""

    for number in range(KEPT + 10):
        operations.begin(("job", str(number)), work)
        await ended(tasks)
    with pytest.raises(NotFound):
        operations.status(("job", "0"))
    assert operations.status(("job", str(KEPT + 9))).done
