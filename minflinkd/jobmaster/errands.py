"""Requests to TaskManagers that are repeated while their outcome is unknown, up to a deadline (A5). Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minflinkd.rpc.messages import Done, Request
from minflinkd.rpc.network import Address
from minflinkd.rpc.party import Ask, Outcome, Unknown
from minflinkd.runtime.ids import LeaderId

RETRY_PAUSE = 0.5  # seconds
LEAST_PATIENCE = 0.1


@dataclass(frozen=True)
class Errand:
    target: Address
    request: Request[Done]
    deadline: float  # in seconds
    about: object  # the command that it carries out


class Errands:
    """The errands under way. `patience` is the seconds for one try; `fence` is the leader that sends them."""

    def __init__(self, *, patience: float, fence: LeaderId) -> None:
        self._patience = patience
        self._fence = fence
        self._resting: list[tuple[float, Errand]] = []  # with the time of their next try

    def ask(self, errand: Errand, now: float) -> Ask:
        patience = max(LEAST_PATIENCE, min(self._patience, errand.deadline - now))
        return Ask(errand.target, errand.request, patience, self._fence, about=errand)

    def settled(self, errand: Errand, outcome: Outcome, now: float) -> bool:
        """Whether the errand has ended. If not, it will be tried again."""
        if not isinstance(outcome, Unknown) or now + RETRY_PAUSE >= errand.deadline:
            return True
        self._resting.append((now + RETRY_PAUSE, errand))
        return False

    def next_due(self) -> float | None:
        return min((at for at, _ in self._resting), default=None)

    def take_due(self, now: float) -> tuple[Errand, ...]:
        due = tuple(errand for at, errand in self._resting if now >= at)
        self._resting = [(at, errand) for at, errand in self._resting if now < at]
        return due

    def drop(self, pointless: Callable[[Errand], bool]) -> tuple[Errand, ...]:
        """Remove the waiting errands that are pointless, and return them."""
        dropped = tuple(errand for _, errand in self._resting if pointless(errand))
        self._resting = [(at, errand) for at, errand in self._resting if errand not in dropped]
        return dropped
