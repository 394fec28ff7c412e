"""The state machine pattern of this project.

A module that makes decisions has an enum of states, a frozen state, frozen events and commands, a literal table of
legal transitions, a pure `step(state, event, now) -> (state, commands)` and `check_invariants(state)`. It has no clock,
socket or Spark. A thin driver (`runtime.machine_driver`) holds one `Machine`, feeds it events and carries out the
commands. The result of a command is the next event. (The pattern comes from dask.distributed's
worker_state_machine.py.)

Within one step, the parts of a machine share a `Step`. Each takes it as its first parameter, `this`, changes
`this.state` and adds to `this.commands`. A machine derives its own `Step`, with the small operations that its parts
have in common. A machine needs none if `step` alone collects the commands, and the other functions are about values:
there, plain values are shorter (`taskmanager/exchange/gate.py`, `checkpoint/deletion_queue.py`).

`taskmanager/slots/registration.py` is the smallest complete example.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from minflinkd.runtime.errors import MinflinkError

S = TypeVar("S")
E = TypeVar("E")
C = TypeVar("C")
P = TypeVar("P", bound=Hashable)


class IllegalTransition(MinflinkError):
    """A move that is not in the table: a bug in the caller, never to be swallowed."""

    code = "illegal-transition"


class InvariantViolated(MinflinkError):
    code = "invariant-violated"


Table = Mapping[P, frozenset[P]]


def table(moves: Mapping[P, Iterable[P]], *, every: Iterable[P] = ()) -> Table[P]:
    """Return a transition table, from -> to. `every` are all states; by default the members of the enum.

    Each must have a row, so that none is forgotten. A state is a member of an enum, or a class whose instances hold the
    facts of that state.
    """
    rows = {source: frozenset(targets) for source, targets in moves.items()}
    kind = type(next(iter(rows)))
    states = every or (kind if issubclass(kind, Enum) else ())
    if missing := [name_of(state) for state in states if state not in rows]:
        raise InvariantViolated(f"{'the table' if every else kind.__name__} has no row for {', '.join(missing)}")
    return rows


def move(legal: Table[P], source: P, target: P, *, what: str) -> P:
    """Return `target` if the table allows the move. Raises IllegalTransition, which names `what` moves."""
    if target not in legal[source]:
        was, allowed = name_of(source), ", ".join(sorted(map(name_of, legal[source]))) or "nothing"
        raise IllegalTransition(f"{what}: {was} -> {name_of(target)}; {was} may become {allowed}")
    return target


def name_of(state: object) -> str:
    """Return the name of a state in a table: an enum's member, or a class."""
    return state.name if isinstance(state, Enum) else getattr(state, "__name__", str(state))


class Step(Generic[S, C]):
    """One step under way: the state so far, and the commands in the order in which they must begin.

    The state is a frozen dataclass or a frozen msgspec struct.
    """

    def __init__(self, state: S, now: float) -> None:
        self.state = state
        self.now = now
        self.commands: list[C] = []

    def set(self, **changes: Any) -> None:
        """Change these fields of the state."""
        replace: Any = msgspec.structs.replace if isinstance(self.state, msgspec.Struct) else dataclasses.replace
        self.state = replace(self.state, **changes)

    def result(self) -> tuple[S, tuple[C, ...]]:
        """Return what the machine's `step` returns."""
        return self.state, tuple(self.commands)


class Machine(Generic[S, E, C]):
    """Holds the state of one pure machine, and its recent events.

    The story (the last events, each with its time) goes into every error message, so that a failure in production reads
    like the test that will reproduce it.
    """

    STORY = 50

    def __init__(
        self,
        state: S,
        step: Callable[[S, E, float], tuple[S, tuple[C, ...]]],
        check: Callable[[S], None] | None = None,
        *,
        name: str,
    ) -> None:
        self.state = state
        self.name = name
        self._step = step
        self._check = check
        self._story: deque[tuple[float, E]] = deque(maxlen=self.STORY)

    def feed(self, event: E, now: float) -> tuple[C, ...]:
        """Process one event and return the commands. The state is unchanged if the step or an invariant raises."""
        self.state, commands = self.decide(event, now)
        return commands

    def decide(self, event: E, now: float) -> tuple[S, tuple[C, ...]]:
        """Step and check as `feed` does, but keep the state.

        For a driver that must store the new state first, and sets `state` to it after that.
        """
        self._story.append((now, event))
        try:
            state, commands = self._step(self.state, event, now)
            if self._check is not None:
                self._check(state)
        except (IllegalTransition, InvariantViolated) as error:
            raise type(error)(f"{self.name}: {error.message}\n{self.story()}", hint=error.hint) from error
        return state, commands

    def story(self) -> str:
        return "\n".join(f"  {now:12.3f}  {event}" for now, event in self._story)
