"""What a sink has staged and no confirmed checkpoint covers yet (J12). Pure; the sink writes it, snapshots read it."""

from __future__ import annotations

import threading

from minflinkd.storage.publication import SinkTransaction, StagedFile


class Ledger:
    """The staged files of one files sink of one attempt. Thread-safe: batches and snapshots come from two threads."""

    def __init__(self, job_id: str, sink: str, root: str) -> None:
        self._job_id = job_id
        self._sink = sink
        self._root = root
        self._lock = threading.Lock()
        self._epochs: dict[int, tuple[StagedFile, ...]] = {}

    def stage(self, epoch: int, files: tuple[StagedFile, ...]) -> None:
        """Record what a micro-batch wrote, in place of what an earlier run of it wrote."""
        with self._lock:
            self._epochs[epoch] = files

    def cover(self, checkpoint_id: int, batch_id: int) -> SinkTransaction:
        """What a checkpoint at `batch_id` publishes: also what earlier ones cover that are not confirmed yet."""
        with self._lock:
            files = tuple(file for epoch in sorted(self._epochs) if epoch <= batch_id for file in self._epochs[epoch])
        return SinkTransaction(
            job_id=self._job_id, sink=self._sink, root=self._root, checkpoint_id=checkpoint_id, files=files
        )

    def confirm(self, batch_id: int) -> None:
        """A checkpoint at `batch_id` is published: its files are no longer staged."""
        with self._lock:
            for epoch in [epoch for epoch in self._epochs if epoch <= batch_id]:
                del self._epochs[epoch]
