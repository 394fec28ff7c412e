"""The network between the parties. It loses, doubles and delays messages and answers, and cuts parties off.

Messages and answers have separate fates. All of them come from the run's one source of randomness. The sender of a
request hears one outcome: the first answer that arrives, a failed connection, or a timeout.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from minflinkd.rpc.codec import Codec
from minflinkd.rpc.messages import Message
from minflinkd.rpc.network import Address, Fenced, RpcTimeout, Unreachable
from minflinkd.rpc.party import Answered, Ask, Outcome, Refused, Tell, Unknown
from minflinkd.runtime.errors import MinflinkError, RemoteError
from minflinkd.runtime.ids import LeaderId
from tests.sim.protocol.engine import Engine
from tests.sim.protocol.journal import Journal
from tests.sim.protocol.party import Party

CALM_DELAYS = (0.001, 0.02)  # seconds, in one direction
HELD_UP_WITHIN = 0.5  # seconds after a cut in which the messages arrive that it held up
Locate = Callable[[Party[Any], Address], Party[Any] | None]  # who hears a message of `source` to an address
MaySend = Callable[[Party[Any], Address, Message], bool]
Spy = Callable[[tuple[Address, Address], object], tuple[float, ...] | None]  # returns the delays that it decides


@dataclass(frozen=True)
class Weather:
    """What may happen to a message, and separately to an answer: chances, and the longest delay of a late one."""

    drop: float = 0.0
    double: float = 0.0
    late: float = 0.0
    latest: float = 0.0  # in seconds


CALM = Weather()


@dataclass(eq=False)
class Call:
    """A request under way."""

    source: Party[Any]
    ask: Ask
    number: int
    done: bool = False


@dataclass(eq=False)
class Later:
    """A party returns this to answer a request later, when something has happened. It is answered once."""

    outcome: Outcome | None = None
    reply: Callable[[Outcome], None] | None = None  # set if somebody waits

    def answer(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.reply is not None:
            self.reply(outcome)


class Wire:
    def __init__(self, engine: Engine, rng: random.Random, journal: Journal, *, encoded: bool = False) -> None:
        self.weather = CALM
        self.sent = 0  # number of messages, without answers
        self.parties: dict[Address, Party[Any]] = {}
        self.silent: set[Address] = set()  # requests to these addresses get no failed connection if nobody is there
        self._engine = engine
        self._rng = rng
        self._journal = journal
        self._codec = Codec() if encoded else None
        self._cuts: dict[tuple[Address, Address], int] = {}  # in one direction; the number of faults that cut it now
        self._resets: dict[tuple[Address, Address], int] = {}  # those that the sender notices
        self._late: dict[tuple[Address, Address], float] = {}  # when what is sent meanwhile arrives at the latest
        self.spies: list[Spy] = []
        self.locate: Locate = lambda source, target: self.parties.get(target)
        self.may_send: MaySend = lambda source, target, message: True

    # --- cuts --------------------------------------------------------------------------------------------------------

    def cut(self, source: Address, target: Address, *, noticed: bool, late_until: float = 0.0) -> None:
        """Cut one direction.

        With `noticed`, the sender sees its connection fail. With `late_until`, messages arrive after the cut, and
        before that time. Otherwise they just vanish.
        """
        if late_until:
            self._late[source, target] = late_until
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1
        if noticed:
            self._resets[source, target] = self._resets.get((source, target), 0) + 1

    def heal(self, source: Address, target: Address, *, noticed: bool) -> None:
        """Undo one cut. A direction works again after as many calls as it was cut."""
        for counts in (self._cuts, self._resets) if noticed else (self._cuts,):
            counts[source, target] -= 1
            if not counts[source, target]:
                del counts[source, target]

    def is_calm(self, one: Address, other: Address) -> bool:
        """Whether messages between the two arrive, in both directions, once and soon."""
        return self.weather is CALM and not self.spies and not {(one, other), (other, one)} & self._cuts.keys()

    # --- sending -----------------------------------------------------------------------------------------------------

    def ask(self, source: Party[Any], ask: Ask) -> None:
        self.sent += 1
        call = Call(source, ask, self.sent)
        if ask.after > 0:
            self._engine.after(ask.after, source.gate, self._send, call)
        else:
            self._send(call)

    def _send(self, call: Call) -> None:
        source, ask = call.source, call.ask
        self._engine.after(ask.timeout, source.gate, self._timed_out, call)
        pair = (source.address, ask.target)
        if pair in self._resets or not self.may_send(source, ask.target, ask.request):
            self._journal.note(self._engine.now, "{} -> {} #{} {}: NO WAY", *pair, call.number, ask.request)
            self._engine.after(0.001, self._come_back, call, _unreachable(ask.target))
            return
        for delay in self._fates(pair, call.number, ask.request):
            self._engine.after(delay, self._arrive, call)

    def tell(self, source: Party[Any], tell: Tell) -> None:
        self.sent += 1
        if not self.may_send(source, tell.target, tell.notice):
            return
        for delay in self._fates((source.address, tell.target), self.sent, tell.notice):
            self._engine.after(delay, self._drop_off, source, tell)

    def _fates(self, pair: tuple[Address, Address], number: int, message: object) -> tuple[float, ...]:
        """Return the delay of each copy that arrives."""
        weather, draw = self.weather, self._rng.random
        fate, delays = "", tuple[float, ...]()
        least, most = CALM_DELAYS
        planned = self._planned(pair, message) if self.spies else None
        if pair in self._cuts:
            until = self._late.get(pair, 0.0) - self._engine.now
            fate = ": HELD UP" if until > 0 else ": CUT OFF"
            delays = (max(0.0, until - HELD_UP_WITHIN) + min(until, HELD_UP_WITHIN) * draw(),) if until > 0 else ()
        elif planned is not None:
            fate, delays = f": AMBUSHED, arrives after {planned}", planned
        elif weather is CALM:
            delays = (least + (most - least) * draw(),)
        elif draw() < weather.drop:
            fate = ": LOST"
        else:
            copies = 1
            if draw() < weather.double:
                copies, fate = 2, ": DOUBLED"
            for _ in range(copies):
                if draw() < weather.late:
                    fate += f": LATE by {(delay := weather.latest * draw()):.2f} s"
                else:
                    delay = least + (most - least) * draw()
                delays += (delay,)
        self._journal.note(self._engine.now, "{} -> {} #{} {}" + fate, *pair, number, message)
        return delays

    def _planned(self, pair: tuple[Address, Address], message: object) -> tuple[float, ...] | None:
        told = [delays for spy in tuple(self.spies) if (delays := spy(pair, message)) is not None]
        return told[0] if told else None

    # --- arriving ----------------------------------------------------------------------------------------------------

    def _arrive(self, call: Call) -> None:
        target = self.locate(call.source, call.ask.target)
        if target is not None:
            target.gate(self._handle, target, call)
        elif call.ask.target not in self.silent:
            self._engine.after(0.001, self._come_back, call, _unreachable(call.ask.target))

    def _handle(self, target: Party[Any], call: Call) -> None:
        ask = call.ask
        try:
            answer = target.receive(self._copied(ask.request), ask.fence)
        except MinflinkError as error:
            self.reply(target, call, Refused(_crossed(error)))
            return
        if not isinstance(answer, Later):
            self.reply(target, call, Answered(answer))
        elif answer.outcome is not None:
            self.reply(target, call, answer.outcome)
        else:
            answer.reply = partial(self.reply, target, call)

    def reply(self, target: Party[Any], call: Call, outcome: Outcome) -> None:
        if self._codec is not None and isinstance(outcome, Answered):
            outcome = Answered(self._codec.decode_answer(type(call.ask.request), self._codec.encode(outcome.value)))
        told = outcome.value if isinstance(outcome, Answered) else outcome.error
        for delay in self._fates((target.address, call.source.address), call.number, told):
            self._engine.after(delay, self._come_back, call, outcome)

    def _come_back(self, call: Call, outcome: Outcome) -> None:
        if not call.done:
            call.source.gate(self._take, call, outcome)

    def _take(self, call: Call, outcome: Outcome) -> None:
        if not call.done:
            call.done = True
            call.source.answered(call.ask, outcome)

    def _timed_out(self, call: Call) -> None:
        if not call.done:
            ask = call.ask
            name = type(ask.request).__name__
            self._journal.note(
                self._engine.now,
                "{} had no answer from {} to #{} {}",
                call.source.address,
                ask.target,
                call.number,
                name,
            )
            error = RpcTimeout(f"{ask.target} did not answer {name} within {ask.timeout:g} s")
            self._take(call, Unknown(error))

    def _drop_off(self, source: Party[Any], tell: Tell) -> None:
        target = self.locate(source, tell.target)
        if target is not None:
            target.gate(self._take_notice, target, tell.notice, tell.fence)

    def _take_notice(self, target: Party[Any], notice: Message, fence: LeaderId | None) -> None:
        try:
            target.receive(self._copied(notice), fence)
        except MinflinkError as error:
            self._journal.note(self._engine.now, "{} does not take a notice: {}", target.address, str(error))

    def _copied(self, message: Any) -> Any:
        """Return the message as it is read on the other side of a socket."""
        if self._codec is None:
            return message
        return self._codec.decode_message(type(message).__name__, self._codec.encode(message))


def _unreachable(target: Address) -> Outcome:
    return Unknown(Unreachable(f"nobody answers at {target}"))


def _crossed(error: MinflinkError) -> MinflinkError:
    """Return the error as it is known on the other side of a process boundary."""
    return error if isinstance(error, Fenced | Unreachable | RemoteError) else RemoteError(error.info())
