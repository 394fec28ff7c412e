"""Master hooks next to a job's tasks: called before them, stored, restored, and never waited for too long (C27)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from minflinkd.checkpoint import hooks
from minflinkd.checkpoint.causes import CheckpointFailed, FailureCause
from minflinkd.checkpoint.hooks import MasterHook, MasterHookFailed, MasterHookMissing, UnknownMasterHook
from tests.sim.checkpoint.world import World
from tests.unit.checkpoint.builders import JOB, TASKS

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


class Recorder(MasterHook):
    """Takes `takes` seconds to answer. None: it hangs, and ignores cancellation, until `let_go` is set."""

    def __init__(self, takes: float | None = 0.0) -> None:
        self.takes = takes
        self.let_go = asyncio.Event()
        self.calls: list[tuple[float, int]] = []
        self.restored: list[tuple[int | None, bytes | None]] = []
        self.error: Exception | None = None
        self.closed = False

    async def trigger(self, checkpoint_id: int) -> bytes:
        self.calls.append((asyncio.get_running_loop().time(), checkpoint_id))
        await self._answer()
        return f"state of {checkpoint_id}".encode()

    async def restore(self, checkpoint_id: int | None, state: bytes | None) -> None:
        await self._answer()
        self.restored.append((checkpoint_id, state))

    async def aclose(self) -> None:
        self.closed = True

    async def _answer(self) -> None:
        if self.error is not None:
            raise self.error
        if self.takes is not None:
            await asyncio.sleep(self.takes)
            return
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                continue


async def test_a_hook_is_called_before_the_tasks_and_given_its_state_back() -> None:
    """After a crash the next coordinator does it too, from the metadata (C27)."""
    hook = Recorder(takes=2.0)
    world = World(hooks={"one": hook})
    async with world.coordinator as coordinator:
        assert await coordinator.restore_point() is None
        world.run(TASKS)
        await coordinator.trigger()
    ((called, number),), ((triggered, _),) = hook.calls, world.triggered
    assert (number, triggered - called) == (1, pytest.approx(2.0))
    assert hook.closed
    world.coordinator = world.new_coordinator()
    async with world.coordinator as successor:
        point = await successor.restore_point()
    assert point is not None
    assert hook.restored == [(None, None), (1, b"state of 1")]


async def test_a_hook_that_fails_aborts_the_checkpoint_and_the_next_one_is_tried() -> None:
    """The cause has a name and contains the hook's message. The job goes on (C27, C23)."""
    hook = Recorder()
    hook.error = ValueError("the other system is away")
    world = World(hooks={"one": hook}, interval=10.0)
    with capture_logs():
        async with world.coordinator as coordinator:
            world.run(TASKS)
            await asyncio.sleep(25)
            hook.error = None
            await asyncio.sleep(10)
            statistics = coordinator.statistics()
    assert [number for _, number in world.triggered] == [3]
    assert (statistics.failed_by_cause, statistics.completed) == ({FailureCause.MASTER_HOOK: 2}, 1)
    assert statistics.consecutive_trigger_failures == 0
    assert world.failures == []
    assert statistics.latest_failed is not None
    assert "ValueError: the other system is away" in str(statistics.latest_failed.error)


async def test_a_hook_that_overruns_is_given_up_and_asked_again_when_it_has_returned() -> None:
    """The limit is the checkpoint's timeout. A hook that ignores cancellation costs its job only checkpoints (C27)."""
    hook = Recorder(takes=None)
    world = World(hooks={"stuck": hook}, timeout=30.0)
    with capture_logs():
        async with world.coordinator as coordinator:
            world.run(TASKS)
            began = asyncio.get_running_loop().time()
            with pytest.raises(CheckpointFailed, match="master hook stuck has not answered within 30 s"):
                await coordinator.trigger()
            assert asyncio.get_running_loop().time() - began == pytest.approx(30.0)
            with pytest.raises(CheckpointFailed, match="still busy with an earlier checkpoint"):
                await coordinator.trigger()
            hook.takes = 0.0
            hook.let_go.set()
            await asyncio.sleep(1)
            assert (await coordinator.trigger()).hooks[0].state == b"state of 3"


async def test_tasks_that_stop_end_the_wait_for_a_hook() -> None:
    """The call is cancelled, and the job is not restarted later because of it (C27, C21)."""
    hook = Recorder(takes=100.0)
    world = World(hooks={"slow": hook})
    async with world.coordinator as coordinator:
        world.run(TASKS)
        trigger = asyncio.create_task(coordinator.trigger())
        await asyncio.sleep(1)
        coordinator.tasks_stopped()
        with pytest.raises(CheckpointFailed, match="task-failure"):
            await trigger
        assert await coordinator.restore_point() is None or hook.takes == 100.0
    assert world.triggered == []


async def test_a_restore_waits_for_the_hooks_and_fails_with_them() -> None:
    """No task is deployed before the other system has gone back (C27)."""
    hook = Recorder()
    world = World(hooks={"one": hook}, timeout=30.0)
    async with world.coordinator as coordinator:
        world.run(TASKS)
        await coordinator.trigger()
        coordinator.tasks_stopped()
        hook.error = ValueError("not now")
        with pytest.raises(MasterHookFailed, match="not now"):
            await coordinator.restore_point()
        hook.error, hook.takes = None, 40.0
        with pytest.raises(MasterHookFailed, match="within 30 s"):
            await coordinator.restore_point()
        hook.takes = 0.0
        assert await coordinator.restore_point() is not None
        assert hook.restored == [(1, b"state of 1")]
        assert coordinator.statistics().restored == 1


async def test_state_of_a_hook_that_is_named_no_more_is_not_dropped_silently() -> None:
    """If a checkpoint holds state that nobody takes, that is an error (C27, C25)."""
    world = World(hooks={"one": Recorder()})
    async with world.coordinator as coordinator:
        world.run(TASKS)
        await coordinator.trigger()
    world.hooks = {"two": Recorder()}
    async with world.new_coordinator() as successor:
        with pytest.raises(MasterHookMissing, match="checkpoint 1 holds the state of the master hook one"):
            await successor.restore_point()


async def test_a_hook_of_another_package_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks are entry points, like storages. The error for an unknown name lists the known ones (C27)."""
    info = tmp_path / "house_hooks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: house-hooks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{hooks.GROUP}]\nhouse = house_hooks:House\nbroken = house_hooks:Nobody\n")
    (tmp_path / "house_hooks.py").write_text(
        "from minflinkd.checkpoint.hooks import MasterHook\n"
        "class House(MasterHook):\n"
        "    def __init__(self, job_id): self.job_id = job_id\n"
        "    async def trigger(self, checkpoint_id): return self.job_id.encode()\n"
        "    async def restore(self, checkpoint_id, state): pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = hooks.load(["house", "house"], JOB)
    assert await loaded["house"].trigger(1) == JOB.encode()
    assert hooks.unknown(["house", "other"]) == ("other",)
    with pytest.raises(UnknownMasterHook, match="installed are: broken, house"):
        hooks.load(["house", "other"], JOB)
    with pytest.raises(UnknownMasterHook, match="cannot be loaded"):
        hooks.load(["broken"], JOB)
