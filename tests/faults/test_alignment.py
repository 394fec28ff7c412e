"""A slow input beside a fast one: how long a barrier waits, what is held back, and checkpoints that do not wait."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from minflinkd.rest.schemas import Checkpoint
from tests.cluster import Cluster
from tests.exactly_once.trial import Trial
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

NAME = "skewed"


class Skewed(Trial):
    """Waits for a checkpoint of a certain kind, `seen`, and may kill the session after it."""

    seen: Checkpoint

    def __init__(self, base: Path, wanted: Callable[[Checkpoint], bool], *, kill: bool, timeout: str) -> None:
        checkpointing = {"interval": "1 s", "alignment-timeout": timeout}
        super().__init__(base, [NAME], files=24, pace="0 s", changes={"checkpointing": checkpointing})
        self._wanted = wanted
        self._kill = kill

    async def strike(self) -> None:
        self.seen = await until(self._look, "such a checkpoint", timeout=120)
        self.tell(f"checkpoint {self.seen.id} took {self.seen.end_to_end_duration} ms")
        if self._kill:
            jobs = await self.jobs()
            self.note_strike(jobs)
            struck = await self.cluster.measured((await self.cluster.task_manager_of(self.ids[NAME])).id)
            os.kill(int(struck.minflinkd.metrics["session.pid"]), signal.SIGKILL)

    async def _look(self) -> Checkpoint | None:
        client, job = self.cluster.client, self.ids[NAME]
        for checkpoint in (await client.checkpoints(job)).history:
            if checkpoint.status == "COMPLETED":
                with_tasks = await client.get(f"/jobs/{job}/checkpoints/details/{checkpoint.id}", Checkpoint)
                if self._wanted(with_tasks):
                    return with_tasks
        return None


def aligned(checkpoint: Checkpoint) -> bool:
    return checkpoint.minflinkd.alignment > 0 and checkpoint.alignment_buffered > 0


def unaligned(checkpoint: Checkpoint) -> bool:
    return any(task.minflinkd.unaligned for task in checkpoint.tasks.values())


@pytest.mark.slow
async def test_a_slow_input_beside_a_fast_one_is_reported(cluster: Cluster, tmp_path: Path) -> None:
    """The checkpoint, and the task that aligned, report the alignment time and the held bytes (C5, C30)."""
    trial = await Skewed(tmp_path, aligned, kill=False, timeout="0 s").run_on(cluster)
    trial.verify(NAME)
    assert any(t.minflinkd.alignment > 0 and t.alignment_buffered > 0 for t in trial.seen.tasks.values())
    assert not unaligned(trial.seen)


@pytest.mark.slow
async def test_a_checkpoint_that_aligns_too_long_completes_while_the_slow_input_lags(
    cluster: Cluster, tmp_path: Path
) -> None:
    """After 1 s it becomes unaligned. When the session is killed, the channel data in the snapshot is exact (C5)."""
    trial = await Skewed(tmp_path, unaligned, kill=True, timeout="1 s").run_on(cluster)
    trial.verify(NAME)
    restored = trial.outcomes[NAME].restored
    assert restored is not None
    assert restored >= trial.seen.id
