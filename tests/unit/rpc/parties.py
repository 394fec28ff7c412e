"""A core whose decisions a test writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minflinkd.rpc.messages import Done, Message
from minflinkd.rpc.party import Outcome
from minflinkd.runtime.ids import LeaderId


class ScriptedCore:
    """Notes what it is told. `commands` are those that it has decided; `on_message` runs for each message."""

    def __init__(self, on_message: Callable[[Message], Any] = lambda _: Done()) -> None:
        self.commands: list[object] = []
        self.on_message = on_message
        self.outcomes: list[tuple[object, Outcome]] = []
        self.ticks: list[float] = []
        self.wake: float | None = None
        self.on_outcome: Callable[[], None] = lambda: None

    def receive(self, message: Message, fence: LeaderId | None, now: float) -> Any:
        return self.on_message(message)

    def answered(self, about: object, outcome: Outcome, now: float) -> None:
        self.outcomes.append((about, outcome))
        self.on_outcome()

    def tick(self, now: float) -> None:
        self.ticks.append(now)
        self.wake = None

    def next_wakeup(self) -> float | None:
        return self.wake

    def take_commands(self) -> tuple[object, ...]:
        taken, self.commands = tuple(self.commands), []
        return taken

    def decides(self, *commands: object, refuses: Exception | None = None) -> Callable[[], str]:
        """Return a decision that leaves these commands, and then refuses or fails with the error."""

        def decision() -> str:
            self.commands += commands
            if refuses is not None:
                raise refuses
            return "decided"

        return decision
