"""The next JobMaster of a job, for another version that is on trial."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobmaster.job import Succession
from minflinkd.jobmaster.succession import Heritage, Trial
from minflinkd.runtime.errors import ErrorInfo
from tests.sim.jobmaster.world import World, new_master
from tests.untimed_storage import untimed_storages


@dataclass
class Heard:
    """What a version on trial has reported."""

    said: list[str] = field(default_factory=list)
    errors: list[ErrorInfo] = field(default_factory=list)
    patience: float | None = None

    @property
    def trial(self) -> Trial:
        return Trial(
            running=lambda: self.said.append("running"),
            idle=lambda: self.said.append("idle"),
            proven=lambda checkpoint_id: self.said.append(f"proven by {checkpoint_id}"),
            disproved=self._disproved,
            left=lambda: self.patience,
        )

    def _disproved(self, error: ErrorInfo) -> None:
        self.said.append("disproved")
        self.errors.append(error)


@asynccontextmanager
async def succeeded(
    world: World,
    tmp_path: Path,
    job: JobGraph,
    *,
    base: int,
    allow: bool = False,
    heard: Heard | None = None,
    **checkpoints: float,
) -> AsyncIterator[Heard]:
    """Start the next JobMaster, for another version, after the present one has stood down."""
    heard = heard or Heard()
    before = world.master
    estate = before.estate()
    await before.aclose()
    storages = untimed_storages()
    succession = Succession(heritage=Heritage(base, allow), estate=estate, trial=heard.trial)
    after = new_master(world, job, storages, tmp_path, succession, **checkpoints)
    world.master = after
    async with after:
        yield heard
    await storages.aclose()
