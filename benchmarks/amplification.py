"""What checkpoints take of the storage over time, and what merging their files costs: two states, merging on and off.

The states: 4 MB of which all changes between two checkpoints, and 200 MB of which 1 % does, in 20 places drawn at
random. State is RocksDB's with changelogs, as ever: what a checkpoint refers to is the last snapshot that RocksDB has
made and the changelogs since. Each checkpoint is triggered by hand as soon as the micro-batch of one change has been
committed, so that it waits for none; the next change follows when it is complete. The same changes go to a job on a
cluster with merging off, in blocks (A B A B), while the other one is idle.

Bytes stored are those of the physical files that the retained checkpoint refers to, by the coordinator's figures once
the previous checkpoint is gone; referenced are the segments of them that it needs. After each checkpoint this waits
until the checkpoint directory holds exactly the files that the metadata names, and until their bytes and those of the
segments are what the coordinator reports; after every block, also until the TaskManager counts the same. A difference
fails the row. Steady state begins with the second block. When a checkpoint completes, the previous one still exists;
what both take then is shown separately.

A plot of stored / referenced goes to `build/plots/amplification.svg`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks import commit_log
from benchmarks.figures import Row
from benchmarks.large_state import LargeState
from benchmarks.plots import line_plot
from benchmarks.running import run, say
from minflinkd.checkpoint import metadata as metadata_format
from minflinkd.checkpoint.layout import METADATA, is_physical_file
from minflinkd.rest.schemas import Checkpoint
from minflinkd.rest.schemas.checkpoints import CheckpointFiles
from tests.cluster import Cluster, running_cluster
from tests.waiting import until

AIM = 1.3  # stored / referenced
PLOT = Path(__file__).parents[1] / "build" / "plots" / "amplification.svg"
OFF = "merging off"


@dataclass(frozen=True)
class Workload:
    name: str
    megabytes: float
    change: Callable[[LargeState], int]


WORKLOADS = {
    "hot": Workload("4 MB, all of it changes", 4, lambda state: state.load(4)),
    "large": Workload("200 MB, 1 % changes", 200, lambda state: state.change(0.01)),
}


async def measure(base: Path, quick: bool, only: Sequence[str] = ()) -> Row:
    blocks, length = (3, 10) if quick else (6, 50)
    row = Row("amplification", "Bytes stored for each that is referenced, and merging on and off")
    lines: dict[str, list[tuple[float, float]]] = {}
    for key in only or WORKLOADS:
        workload = WORKLOADS[key]
        merged, apart = await _side_by_side(base / key, workload, blocks, length)
        _report(row, workload, merged, apart, length)
        lines[workload.name] = [(n, sample.files.amplification) for n, sample in enumerate(merged.samples, 1)]
    await asyncio.to_thread(
        line_plot, PLOT, "Space amplification", "checkpoint", "bytes stored / referenced", lines, limit=AIM
    )
    say(f"amplification: the plot is {PLOT}")
    return row


@dataclass(frozen=True)
class Sample:
    """A checkpoint, and the job's files once nothing of the previous one is left."""

    checkpoint: Checkpoint
    files: CheckpointFiles

    @property
    def new(self) -> int:
        return self.checkpoint.checkpointed_size - self.rewritten

    @property
    def rewritten(self) -> int:
        return self.checkpoint.minflinkd.bytes_rewritten

    @property
    def at_completion(self) -> float:
        """Bytes stored at completion, per byte that is needed now."""
        assert self.checkpoint.minflinkd.files is not None
        return self.checkpoint.minflinkd.files.bytes_stored / self.files.bytes_referenced


@dataclass
class Side:
    """One of the two jobs, with its `samples` in order."""

    cluster: Cluster
    job_id: str
    state: LargeState
    workload: Workload
    samples: list[Sample] = field(default_factory=list)

    async def block(self, count: int) -> None:
        for _ in range(count):
            await commit_log.committed(self.cluster, self.workload.change(self.state))
            number = await self.cluster.client.checkpoint(self.job_id)
            files = await self._settled(number)
            where = f"/jobs/{self.job_id}/checkpoints/details/{number}"
            self.samples.append(Sample(await self.cluster.client.get(where, Checkpoint), files))
        await self._compare(files)

    async def _settled(self, number: int) -> CheckpointFiles:
        """Wait until nothing is left of the previous checkpoint, and disk and coordinator agree on the figures."""
        directory = self.cluster.state / "checkpoints" / self.job_id
        metadata = metadata_format.decode((directory / f"chk-{number}" / METADATA).read_bytes())
        handles = {file.handle for task in metadata.tasks for file in task.files}
        names, referenced = {handle.file for handle in handles}, sum(handle.length for handle in handles)

        async def there() -> CheckpointFiles | None:
            sizes = await asyncio.to_thread(_physical_files, directory)
            told = (await self.cluster.client.checkpoints(self.job_id)).minflinkd.files
            right = (told.bytes_stored, told.bytes_referenced) == (sum(sizes.values()), referenced)
            return told if sizes.keys() == names and right else None

        return await until(there, f"the files of checkpoint {number} alone, of the size that is told", pause=0.02)

    async def _compare(self, files: CheckpointFiles) -> None:
        """Compare with the TaskManager's figures, from its heartbeats."""
        runner = (await self.cluster.task_manager_of(self.job_id)).id
        found: dict[str, float] = {}

        async def alike() -> bool:
            found.update((await self.cluster.measured(runner)).minflinkd.metrics)
            return (found["merging.bytes_stored"], found["merging.bytes_referenced"]) == (
                files.bytes_stored,
                files.bytes_referenced,
            )

        try:
            await until(alike, "figures that agree", timeout=30, pause=0.2)
        except AssertionError:
            told = {key: value for key, value in found.items() if key.startswith("merging.")}
            raise AssertionError(f"the TaskManager tells {told}, the coordinator {files}") from None


async def _side_by_side(base: Path, workload: Workload, blocks: int, length: int) -> tuple[Side, Side]:
    settings = {
        "taskmanager.numberOfTaskSlots": 2,
        "taskmanager.memory.heap.size": "3 GiB",
        "resourcemanager.max-taskmanagers": 1,
    }
    off = {**settings, "execution.checkpointing.file-merging.enabled": False}
    async with (
        running_cluster(base / "merged-cluster", **settings) as one,
        running_cluster(base / "apart-cluster", **off) as other,
    ):
        sides = [await _begun(cluster, base / name, workload) for cluster, name in ((one, "merged"), (other, "apart"))]
        for block in range(blocks):
            for side in sides:
                await side.block(length)
            latest = max(sample.files.amplification for sample in sides[0].samples[-length:])
            say(f"amplification: {workload.name}: {(block + 1) * length} checkpoints each, at most {latest} of late")
        return sides[0], sides[1]


async def _begun(cluster: Cluster, base: Path, workload: Workload) -> Side:
    """Start the job, and wait until it has created its state and completed a checkpoint."""
    await cluster.await_ready(1)
    state = LargeState(base)
    last = state.load(workload.megabytes)
    job_id = await cluster.submit(state.write(base.name, interval="1 h"))
    await commit_log.committed(cluster, last, timeout=300)
    await cluster.client.checkpoint(job_id)
    return Side(cluster, job_id, state, workload)


def _report(row: Row, workload: Workload, merged: Side, apart: Side, settled: int) -> None:
    name, steady, other = workload.name, merged.samples[settled:], apart.samples[settled:]

    def add(figure: str, unit: str, value: Callable[[Sample], float]) -> None:
        row.add(f"{name}: {figure}", unit, [value(s) for s in steady], (OFF, [value(s) for s in other]))

    add("stored / referenced", "", lambda s: s.files.amplification)
    row.add(f"{name}: the same, from the first on", "", [s.files.amplification for s in merged.samples])
    above = sum(round(s.files.amplification, 3) > AIM for s in steady)  # rounded: headers do not matter
    row.add(f"{name}: checkpoints above {AIM} in steady state", "", [above])
    add("at completion, beside the one before", "", lambda s: s.at_completion)
    add("bytes stored", "MB", lambda s: s.files.bytes_stored / 1e6)
    add("physical files", "", lambda s: s.files.physical)
    add("new state", "MB", lambda s: s.new / 1e6)
    rewritten = [s.rewritten for s in steady]
    row.add(f"{name}: bytes rewritten for each new one", "", [sum(rewritten) / max(1, sum(s.new for s in steady))])
    row.add(f"{name}: rewritten, by checkpoints that do", "MB", [size / 1e6 for size in rewritten if size])
    row.add(f"{name}: checkpoints that rewrite", "%", [100 * statistics.mean(size > 0 for size in rewritten)])
    add("files created", "", lambda s: s.checkpoint.minflinkd.calls["create"].count)
    add("trigger -> complete", "ms", lambda s: s.checkpoint.end_to_end_duration + s.checkpoint.minflinkd.metadata)
    add("upload", "ms", lambda s: max(task.minflinkd.async_ for task in s.checkpoint.tasks.values()))


def _physical_files(directory: Path) -> dict[str, int]:
    """Return bytes by file name."""
    sizes: dict[str, int] = {}
    for path, _, names in os.walk(directory):
        for name in filter(is_physical_file, names):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                sizes[name] = (Path(path) / name).stat().st_size
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="30 checkpoints instead of 300")
    parser.add_argument("--only", choices=WORKLOADS, nargs="+", default=(), help="not both states")
    options = parser.parse_args()
    run(partial(measure, only=options.only), quick=options.quick)


if __name__ == "__main__":
    main()
