"""The last stage of an attempt: its query has ended, and its state stores may still be open for another attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minflinkd.taskmanager.session.restore.continuation import Standing
from minflinkd.taskmanager.session.state.stores import StateStores


@dataclass(frozen=True)
class StoppedQuery:
    """A query that was stopped.

    `runs`: ids under which it may have open state stores. `standing`: where another attempt may continue, if anywhere.
    """

    directory: str
    stores: StateStores
    runs: Sequence[str]
    standing: Standing | None

    def unload(self) -> bool:
        """Close the state stores. Blocks. Returns whether all are closed.

        An attempt that starts from a copy of the state need not wait for this: it has a directory of its own.
        """
        closed = [self.stores.close(run) for run in self.runs]  # close all of them, even if one cannot be closed
        return all(closed)
