"""Commits to a table that carry a mark: who commits reads it first, and adds only what is not there yet.

Two attempts may commit at the same time, if one only seems dead. The table refuses a commit beside which another one
was made with a mark of the same writer. Then the mark is read again.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Protocol

import structlog

from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict, TableChanged, TableFailed
from minflinkd.taskmanager.session.sinks.tables.staged import Staged, changed, next_number, unpublished

log = structlog.get_logger(__name__)

_TRIES: Final = 10  # of a commit beside those of other writers
_PAUSE: Final = 0.1  # seconds, before the second try


@dataclass(frozen=True)
class Look:
    """The table as it was at one moment.

    `number`: in the mark of the writer who looked; None without a mark. `facts`: what tokens may rely on.
    """

    number: int | None
    table: Any  # the library's; None: there is no table
    facts: dict[str, str] = field(default_factory=dict)


class Marked(Protocol):
    """A table whose commits carry marks."""

    name: str  # for errors

    @abstractmethod
    def look(self, owner: str) -> Look:
        """Read the mark of `owner`. A commit is based on what was seen with it. Raises TableFailed."""


class MarkedCommits:
    """The commits of one sink of one attempt."""

    def __init__(self, table: Marked, job_id: JobId, sink: VertexId) -> None:
        self._table = table
        self._job_id, self._sink = job_id, sink
        self._number: int | None = None  # the last one that this attempt has given; None before the first
        self._own: set[int] = set()  # numbers that this attempt has given, and not committed yet
        self._tried = 0  # the largest number that this attempt has tried to commit

    def owner(self, job_id: str) -> str:
        return f"minflinkd.{job_id}.{self._sink}"

    def next_number(self) -> int:
        """Return the number of a new token. Raises TableFailed."""
        if self._number is None:  # all that earlier attempts owed is committed by now
            self._number = self._table.look(self.owner(self._job_id)).number or 0
        self._number = next_number(self._number, time.time())
        self._own.add(self._number)
        return self._number

    def is_own(self, token: Staged) -> bool:
        """Whether this attempt has staged the token, and not committed it yet."""
        return token.number in self._own

    def commit(
        self,
        checkpoint_id: int,
        tokens: Sequence[Staged],
        add: Callable[[Look, str, Sequence[Staged], int], None],
    ) -> None:
        """Call `add(look, owner, left, checkpoint_id)` for tokens that are not in the table yet.

        `add` makes their rows visible and sets the mark to the number of the last one, both or neither. Raises
        TableFailed, and what `add` raises but Conflict.
        """
        for job_id in dict.fromkeys(token.job for token in tokens):  # those of a savepoint of another job come first
            owed = [token for token in tokens if token.job == job_id]
            for _, of_one_spec in groupby(owed, key=lambda token: token.spec):
                self._commit(self.owner(job_id), checkpoint_id, list(of_one_spec), add)
        self._own.difference_update(token.number for token in tokens)

    def _commit(
        self,
        owner: str,
        checkpoint_id: int,
        tokens: Sequence[Staged],
        add: Callable[[Look, str, Sequence[Staged], int], None],
    ) -> None:
        why = ""
        for tried in range(_TRIES):
            look = self._table.look(owner)
            self._check_mark(look, tokens)
            left = unpublished(look.number, tokens)
            if not left:
                return
            if look.table is None and left[0].table == self._table.name:
                raise TableFailed(
                    f"{self._table.name} is gone, and rows of sink {self._sink} wait for it",
                    hint="was it moved, dropped or renamed, or is a disk not mounted? It is tried again",
                )
            if tokens[-1].job == self._job_id:
                self._tried = max(self._tried, tokens[-1].number)
            try:
                add(look, owner, left, checkpoint_id)
            except Conflict as conflict:
                why = str(conflict)
                log.info("another commit came first", sink=self._sink, table=self._table.name, why=why)
                time.sleep(_PAUSE * tried)
                continue
            reach(CrashPoint.SINK_WRITTEN)
            return
        raise TableFailed(
            f"sink {self._sink}: {self._table.name} refused each of {_TRIES} commits: {why}",
            hint="the rows stay staged, and it is tried again; do other writers change the table all the time?",
        )

    def _check_mark(self, look: Look, tokens: Sequence[Staged]) -> None:
        """Raise TableFailed if another attempt has published later rows than these of this one, by its clock.

        They would pass for published. It needs an attempt that goes on though it is believed dead, and whose clock is
        ahead. If this is that attempt, the error changes nothing.
        """
        last = tokens[-1].number
        overtaken = look.number is not None and self._number is not None and look.number > self._number
        if overtaken and last in self._own and last > self._tried:
            raise TableFailed(
                f"sink {self._sink}: another attempt of the job has published later rows to {self._table.name}",
                hint="do two clusters run the same job, or are the clocks of the hosts apart? Restart the job",
            )


def check_facts(table: str, sink: VertexId, look: Look, tokens: Sequence[Staged]) -> None:
    """Raise TableChanged if the table is not the one for which the tokens were staged. `table`: its name."""
    for token in tokens:
        if token.table != table:
            raise TableChanged(
                f"sink {sink}: rows wait for {token.table}, and the sink now names {table}",
                hint="start the job once with the table before; then take a savepoint, and start it with the new one",
            )
        if gone := changed(token.relies_on, look.facts):
            raise TableChanged(
                f"sink {sink}: rows wait for {table} as it was, and these have changed since: {', '.join(gone)}",
                hint="was the table replaced, or a column renamed? Undo the change and start the job from its last "
                "checkpoint; or start it from an earlier savepoint, and check for rows that are then there twice",
            )
