"""What all kinds of sinks have in common: the interfaces between a task and its sinks."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol

from pyspark.sql import DataFrame

from minflinkd.rpc.messages import SinkCompactions
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AttemptId, JobId, VertexId
from minflinkd.storage.publication import SinkTransaction, StagedToken
from minflinkd.taskmanager.session.sinks.compaction.compactor import Compactor
from minflinkd.taskmanager.session.state.ledger import Ledger


class BatchSink(Protocol):
    """Takes the micro-batches of one sink vertex, one at a time."""

    ledger: Ledger | None
    reads_all: bool  # False: the sink may leave rows of the frame unread, or read them twice

    def write(self, frame: DataFrame, epoch: int) -> int | None:
        """Write a micro-batch. Returns the rows written; None if the sink got all rows and has not counted them."""
        ...


class InvalidToken(MinflinkError):
    """A python sink's `stage` returned something that cannot be kept in a checkpoint."""

    code = "invalid-sink-token"


class TwoPhase(Protocol):
    """Stages micro-batches durably, and commits them once a checkpoint is complete (J13).

    A token is what `stage` returned, or what JSON makes of it. Every call may be repeated, and another process than the
    one that staged may commit.
    """

    def stage(self, batch: DataFrame, epoch: int) -> Any:
        """Write the rows durably, but not visibly yet. Returns a token, or None if there was nothing to stage."""
        ...

    def commit(self, checkpoint_id: int, tokens: list[Any]) -> None:
        """Make visible what was staged. Tokens that an earlier call has committed must change nothing."""
        ...

    def abort(self, tokens: list[Any] | None) -> None:
        """Discard these tokens: no checkpoint will cover them.

        None, at an attempt's start: discard everything that is still staged, since all that was covered by a checkpoint
        has been committed.
        """
        ...

    # close() is optional: called last, if the attempt has ended normally


class ReadsOnce(TwoPhase):
    """Its `stage` reads all rows of a micro-batch once, and counts them. So the frame need not be kept in memory."""

    @abstractmethod
    def count(self, token: Any) -> int:
        """Return the rows that a token stands for."""


class HeldInSnapshots(TwoPhase):
    """Has no place of its own for what it stages. Its files become part of the snapshots that cover them (C11)."""

    @abstractmethod
    def files(self, token: Any) -> tuple[str, ...]:
        """Return the paths, below the attempt's directory, of the files that hold a token's rows.

        In a snapshot they have the same paths. They never change, and are deleted once they are committed or discarded.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """The attempt ends: let a commit fail soon that another thread is waiting for."""


class CommittingSink:
    """Records the tokens of a sink that commits by itself. One transaction of it is committed at a time."""

    def __init__(
        self,
        vertex_id: VertexId,
        job_id: JobId,
        attempt_id: AttemptId,
        inner: TwoPhase,
        *,
        compactor: Compactor | None = None,
    ) -> None:
        """`compactor`: of the table to which the sink commits."""
        self.vertex_id = vertex_id
        self._compactor = compactor
        self.ledger: Ledger | None = Ledger(job_id, vertex_id)
        self._attempt_id = attempt_id
        self._inner = inner
        self.reads_all = isinstance(inner, ReadsOnce)

    def write(self, frame: DataFrame, epoch: int) -> int | None:
        staged = self._inner.stage(frame, epoch)
        if staged is not None:
            assert self.ledger is not None
            held = self._inner.files(staged) if isinstance(self._inner, HeldInSnapshots) else ()
            self.ledger.stage(epoch, tokens=(StagedToken(self._attempt_id, epoch, self._text(staged), held),))
        if not isinstance(self._inner, ReadsOnce):
            return None
        return 0 if staged is None else self._inner.count(staged)

    def commit(self, transaction: SinkTransaction) -> None:
        if transaction.tokens:
            self._inner.commit(transaction.checkpoint_id, _values(transaction.tokens))
            if self._compactor is not None:
                self._compactor.committed()

    @property
    def compactions(self) -> SinkCompactions | None:
        """What compactions of its table have done; None before the first."""
        figures = self._compactor.figures if self._compactor is not None else None
        return figures if figures is not None and figures.last_ms else None

    def begin(self) -> None:
        """Begin an attempt: everything that earlier attempts had to commit is committed, so discard the rest."""
        self._inner.abort(None)

    def discard(self, batch_id: int) -> None:
        """Discard what the ending attempt staged after this micro-batch, as no checkpoint covers it."""
        assert self.ledger is not None
        if tokens := self.ledger.beyond(batch_id):
            self._inner.abort(_values(tokens))

    def interrupt(self) -> None:
        """End a commit that another thread is waiting for, if the sink can."""
        if isinstance(self._inner, HeldInSnapshots):
            self._inner.interrupt()

    def close(self) -> None:
        if self._compactor is not None:
            self._compactor.close()
        if callable(close := getattr(self._inner, "close", None)):
            close()

    def _text(self, staged: object) -> str:
        try:
            return json.dumps(staged, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidToken(
                f"sink {self.vertex_id}: stage returned a {type(staged).__name__}, which is not JSON: {error}",
                hint="return texts, numbers, lists or mappings of them, by which commit finds the rows",
            ) from error


def _values(tokens: Iterable[StagedToken]) -> list[Any]:
    return [json.loads(token.token) for token in tokens]
