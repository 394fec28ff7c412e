"""Following a job's logs from one TaskManager to the next."""

from __future__ import annotations

import asyncio

import pytest

from minflinkd.cli import job_logs
from minflinkd.cli.client import Client
from minflinkd.cli.job_logs import JobLogs
from minflinkd.rpc.messages import ListLogs, LogFile
from minflinkd.runtime.errors import NotFound
from tests.component.cli.conftest import RunningDaemon
from tests.unit.rest.parties import RUNNING, TaskManager
from tests.waiting import until


def ends_once(manager: TaskManager) -> None:
    """Let the second answer be that the TaskManager has ended. From then on its log has one more line."""
    looks: list[ListLogs] = []

    async def answer(question: ListLogs) -> tuple[LogFile, ...]:
        looks.append(question)
        if len(looks) == 2:
            manager.logs = {"taskmanager.log": b"before\nafter\n"}
            raise NotFound("there is no such TaskManager")
        return await manager.list_logs(question)

    manager.mailbox.on(ListLogs, answer)


async def test_a_taskmanager_that_ends_does_not_end_those_who_follow(
    daemon: RunningDaemon, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TaskManager may end after it was listed and before its logs are read."""
    monkeypatch.setattr(job_logs, "PAUSE", 0.01)
    daemon.task_manager.logs = {"taskmanager.log": b"before\n"}
    ends_once(daemon.task_manager)
    async with Client(daemon.url) as client:
        following = asyncio.create_task(JobLogs(client, RUNNING, None, True).print(tail=None, follow=True))
        shown = b""

        def all_shown() -> bool:
            nonlocal shown
            shown += capfdbinary.readouterr().out
            return b"after\n" in shown or following.done()

        await until(all_shown)
        assert shown.endswith(b"before\nafter\n"), shown
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
