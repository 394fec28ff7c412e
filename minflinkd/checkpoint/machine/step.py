"""One step of the coordinator's machine, and the small operations that all of its parts use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from minflinkd.checkpoint.causes import CheckpointKind, Refusal
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.pending import PendingCheckpoint
from minflinkd.checkpoint.machine.state import Final, Request, State
from minflinkd.runtime import machine

FINAL_RETRY = 1.0  # seconds until a failed final checkpoint is tried again

V = TypeVar("V")


class Step(machine.Step[State, e.Command]):
    def put(self, checkpoint: PendingCheckpoint) -> None:
        self.set(pending={**self.state.pending, checkpoint.checkpoint_id: checkpoint})

    def drop(self, number: int) -> None:
        """The checkpoint is no longer pending."""
        self.set(pending=without(self.state.pending, number))

    def own_request(self, kind: CheckpointKind) -> Request:
        self.set(own_requests=self.state.own_requests + 1)
        return Request(-self.state.own_requests, kind)

    def refuse(self, request: Request, reason: Refusal) -> None:
        self.missed(request.number)
        self.commands.append(e.Refuse(request.number, reason))

    def missed(self, number: int) -> None:
        """The request leads to no checkpoint. Undo what depended on it."""
        if self.state.stopping == number:
            self.set(stopping=None)
        final = self.state.final
        if final is not None and final.request == number:
            self.set(final=Final(retry_at=self.now + FINAL_RETRY))

    def answer(self, command: e.Fail | e.Complete) -> None:
        """Only requests of the driver's callers get an answer."""
        if command.request > 0:
            self.commands.append(command)


def without(mapping: Mapping[int, V], key: int) -> dict[int, V]:
    return {number: value for number, value in mapping.items() if number != key}
