"""What drivers of machines share: commands in order, the time, and waiting for a state."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from minflinkd.runtime.clock import Clock
from minflinkd.runtime.machine import Machine

S = TypeVar("S")
E = TypeVar("E")
C = TypeVar("C")


class CommandQueue(Generic[C]):
    """Carries out commands in the order in which they were decided.

    If carrying one out leads to the next decision, the commands of that one wait for those before them. If one fails,
    those after it are dropped, and the error is raised.
    """

    def __init__(self, carry_out: Callable[[C], None]) -> None:
        self._carry_out = carry_out
        self._waiting: deque[C] = deque()
        self.busy = False  # commands are being carried out

    def add(self, commands: Iterable[C]) -> None:
        """Carry these out, at once or after those that are being carried out."""
        self._waiting += commands
        if self.busy:
            return
        self.busy = True
        try:
            while self._waiting:
                self._carry_out(self._waiting.popleft())
        finally:
            self.busy = False
            self._waiting.clear()

    def clear(self) -> None:
        self._waiting.clear()


class StateWatch(Generic[S]):
    """Lets others wait for a state. `read` returns the present one. `on_change` is called in the step of a change."""

    def __init__(self, read: Callable[[], S]) -> None:
        self.read = read
        self.on_change: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()  # every change replaces it

    def changed(self) -> None:
        """The state may have changed."""
        self.on_change()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, condition: Callable[[S], bool], timeout: float | None = None) -> None:
        """Wait until `condition` holds. Raises TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            while not condition(self.read()):
                await self._changed.wait()


class Timer:
    """Passes time to a machine: calls `tick` when something is due, and checks again after every change.

    `due` returns when, in monotonic seconds; None: not before the next change. `tick` gets a time no earlier than that.
    The owner of the machine runs `run` as a loop, and steps it with the times of `now`.
    """

    def __init__(self, clock: Clock, *, due: Callable[[], float | None], tick: Callable[[float], object]) -> None:
        self._clock = clock
        self._due = due
        self._tick = tick
        self._changed = asyncio.Event()
        self._waits_for: float | None = None
        self._ticked = 0.0  # when the last tick was due

    def now(self) -> float:
        """Return the time for a step, in monotonic seconds. It is never before a tick that has happened.

        A tick may be a moment early, and gets the time when it was due. If the next event got an earlier one, what has
        just become due would not be due for it.
        """
        return max(self._ticked, self._clock.monotonic())

    def changed(self) -> None:
        """The next due time may have changed. Most changes leave it as it is, and then nobody need wake up."""
        if self._due() != self._waits_for:
            self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            due = self._waits_for = self._due()
            try:
                async with asyncio.timeout(None if due is None else max(0.0, due - self._clock.monotonic())):
                    await self._changed.wait()
            except TimeoutError:
                # The timeout may fire slightly early. With a time before `due`, this loop would wait again and again.
                self._ticked = due or 0.0
                self._tick(self.now())


class MachineDriver(Generic[S, E, C]):
    """Feeds a machine events and time, and carries out its commands. The owner runs `run` as a loop.

    `due` returns when the machine has something to do, from its state and the time of its last step. `tick` is the
    event for that. Events are ignored once `ended` returns True. `crash` makes an error for the caller of any error of
    the machine or of a command.
    """

    def __init__(
        self,
        machine: Machine[S, E, C],
        *,
        clock: Clock,
        due: Callable[[S, float], float | None],
        tick: E,
        carry_out: Callable[[C], None],
        ended: Callable[[], bool],
        crash: Callable[[Exception], Exception] | None = None,
    ) -> None:
        self.machine = machine
        self.watch = StateWatch(lambda: self.state)
        self._ended = ended
        self._crash = crash
        self._commands = CommandQueue(carry_out)
        self._stepped_at = 0.0  # monotonic seconds
        self._timer = Timer(
            clock,
            # Uses the time of the last step, not the current time. No step has yet seen what became due since then.
            due=lambda: due(self.state, self._stepped_at),
            tick=lambda now: self._feed(tick, now),
        )

    @property
    def state(self) -> S:
        return self.machine.state

    def feed(self, event: E) -> None:
        self._feed(event, self._timer.now())

    async def run(self) -> None:
        await self._timer.run()

    def _feed(self, event: E, now: float) -> None:
        if self._ended():
            return
        try:
            self._stepped_at = now
            self._commands.add(self.machine.feed(event, now))
        except Exception as error:
            if self._crash is None:
                raise
            raise self._crash(error) from error
        self.watch.changed()
        self._timer.changed()
