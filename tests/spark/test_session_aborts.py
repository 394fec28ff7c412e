"""An abort while a snapshot is being taken, in the session child without Spark (C13)."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from minflinkd.rpc.messages import Done
from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.child import protocol as p
from minflinkd.taskmanager.session.child import SessionChild, _Attempt
from minflinkd.taskmanager.session.query.ending import Ending

ATTEMPT = AttemptId("1" * 32)


@dataclass
class Linking:
    """A task that is making its links. It no longer checks whether to give up."""

    linking: threading.Event = field(default_factory=threading.Event)
    linked: threading.Event = field(default_factory=threading.Event)
    taken: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)

    def take_snapshot(self, request: p.TakeSnapshot) -> p.SnapshotTaken:
        self.taken.append(request.checkpoint_id)
        self.linking.set()
        self.linked.wait()
        Path(request.target_directory).mkdir()
        return p.SnapshotTaken(batch_id=1)

    def abort_snapshot(self, checkpoint_id: int) -> None:
        self.aborted.append(checkpoint_id)


async def child_of(task: Linking) -> SessionChild:
    unused = SimpleNamespace(session=SimpleNamespace(config=SimpleNamespace(stepped=False)))
    child = SessionChild(cast(Any, unused), tell=lambda _: None)
    started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    started.set_result((task, p.TaskRunning(phases={})))
    child._attempts[ATTEMPT] = _Attempt(cast(Any, None), Ending(), started)
    return child


def take(target: Path) -> p.TakeSnapshot:
    return p.TakeSnapshot(attempt_id=ATTEMPT, checkpoint_id=1, target_directory=str(target))


async def test_an_abort_is_answered_when_no_link_is_made_any_more(tmp_path: Path) -> None:
    """If the answer came earlier, links would be made after the supervisor has removed them (C13)."""
    task = Linking()
    child = await child_of(task)
    taking = asyncio.create_task(child._take_snapshot(take(tmp_path / "snapshot")))
    await asyncio.to_thread(task.linking.wait)
    taking.cancel()  # as when the supervisor gives up
    abort = asyncio.create_task(child._abort_snapshot(p.AbortSnapshot(attempt_id=ATTEMPT, checkpoint_id=1)))
    done, _ = await asyncio.wait({abort}, timeout=0.05)
    assert (done, task.aborted) == (set(), [1])
    task.linked.set()
    assert await abort == Done()
    assert (tmp_path / "snapshot").exists()
    assert child._attempts[ATTEMPT].snapshots == {}


async def test_a_repeated_request_waits_for_the_same_links(tmp_path: Path) -> None:
    """A second request that did not wait would find that its target exists (C11)."""
    task = Linking()
    child = await child_of(task)
    both = [asyncio.create_task(child._take_snapshot(take(tmp_path / "snapshot"))) for _ in range(2)]
    await asyncio.to_thread(task.linking.wait)
    task.linked.set()
    assert await asyncio.gather(*both) == [p.SnapshotTaken(batch_id=1)] * 2
    assert task.taken == [1]
