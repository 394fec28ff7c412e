"""The Dispatcher's part in the protocol: it tells the ResourceManager of each job's end until that answers.

A ResourceManager that knows nothing asks it which jobs have not ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minflinkd.rpc.messages import JobMasterEnded, JobsToRun, ListJobsToRun, Message
from minflinkd.rpc.network import DISPATCHER, RESOURCE_MANAGER, Unreachable
from minflinkd.rpc.party import Ask, Outcome, Unknown
from minflinkd.runtime.ids import JobId, LeaderId
from tests.sim.protocol.party import Party
from tests.sim.protocol.universe import Universe

TIMEOUT = 2.0  # in seconds
PAUSE = 0.5


class Farewells:
    """The Dispatcher's core, a rpc.party.Core."""

    def __init__(self, to_run: Callable[[], tuple[JobId, ...]]) -> None:
        self._to_run = to_run
        self.told: set[JobId] = set()
        self._commands: list[object] = []

    def ended(self, job_id: JobId, leader_id: LeaderId, after: float = 0.0) -> None:
        farewell = JobMasterEnded(job_id=job_id, leader_id=leader_id)
        self._commands.append(Ask(RESOURCE_MANAGER, farewell, TIMEOUT, about=farewell, after=after))

    def receive(self, message: Message, fence: LeaderId | None, now: float) -> Any:
        if isinstance(message, ListJobsToRun):
            return JobsToRun(jobs=self._to_run())
        raise Unreachable("nobody says anything else to it here")

    def answered(self, about: object, outcome: Outcome, now: float) -> None:
        assert isinstance(about, JobMasterEnded)
        if isinstance(outcome, Unknown):
            self.ended(about.job_id, about.leader_id, PAUSE)
        else:
            self.told.add(about.job_id)

    def tick(self, now: float) -> None:
        pass

    def next_wakeup(self) -> float | None:
        return None

    def take_commands(self) -> tuple[object, ...]:
        commands, self._commands = tuple(self._commands), []
        return commands


class DispatcherParty(Party[Farewells]):
    def __init__(self, universe: Universe, to_run: Callable[[], tuple[JobId, ...]]) -> None:
        super().__init__(universe, DISPATCHER, Farewells(to_run))

    def ended(self, job_id: JobId, leader_id: LeaderId) -> None:
        self.step(self.core.ended, job_id, leader_id)
