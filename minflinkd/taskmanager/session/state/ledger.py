"""What a sink has staged and no confirmed checkpoint covers yet (J12). Pure. The sink writes it, snapshots read it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from minflinkd.storage.publication import SinkTransaction, StagedFile, StagedToken


@dataclass(frozen=True)
class _Staged:
    files: tuple[StagedFile, ...] = ()
    tokens: tuple[StagedToken, ...] = ()


class Ledger:
    """What one sink of one attempt has staged: files below `root`, or tokens of a sink that commits by itself.

    Thread-safe: batches and snapshots come from two threads.
    """

    def __init__(self, job_id: str, sink: str, root: str = "") -> None:
        self._job_id = job_id
        self._sink = sink
        self._root = root
        self._lock = threading.Lock()
        self._epochs: dict[int, _Staged] = {}

    def stage(self, epoch: int, files: tuple[StagedFile, ...] = (), tokens: tuple[StagedToken, ...] = ()) -> None:
        """Record what a micro-batch has staged. Replaces the record of an earlier run of the same micro-batch."""
        with self._lock:
            self._epochs[epoch] = _Staged(files, tokens)

    def cover(self, checkpoint_id: int, batch_id: int) -> SinkTransaction:
        """Return what a checkpoint at `batch_id` publishes, with what earlier, unconfirmed checkpoints cover."""
        staged = self._of(lambda epoch: epoch <= batch_id)
        return SinkTransaction(
            job_id=self._job_id,
            sink=self._sink,
            root=self._root,
            checkpoint_id=checkpoint_id,
            files=tuple(file for part in staged for file in part.files),
            tokens=tuple(token for part in staged for token in part.tokens),
        )

    def beyond(self, batch_id: int) -> tuple[StagedToken, ...]:
        """Return the tokens staged after `batch_id`, which no snapshot up to there covers."""
        return tuple(token for part in self._of(lambda epoch: epoch > batch_id) for token in part.tokens)

    def confirm(self, batch_id: int) -> None:
        """Forget what a checkpoint at `batch_id` has published: it is no longer staged."""
        with self._lock:
            for epoch in [epoch for epoch in self._epochs if epoch <= batch_id]:
                del self._epochs[epoch]

    def _of(self, wanted: Callable[[int], bool]) -> list[_Staged]:
        with self._lock:
            return [self._epochs[epoch] for epoch in sorted(self._epochs) if wanted(epoch)]
