"""The events of one topic: the state as it is, and what has been said lately. Pure.

A subscriber has a place in the log, not a queue of its own. So a slow one costs no memory, and one that comes back with
the place where it was gets what it has missed. An event that says how something *is* takes the place of the earlier one
about the same thing: whoever has not read that one needs it no more. Events that only tell, such as samples, are kept
for a while, the last ones of them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MOST_TOLD: Final = 240  # events that only tell
MOST_BYTES: Final = 4 << 20  # of those
MOST_SHARED: Final = 8  # texts that are kept for other subscribers

_BEGUN: Final = b"id: begun\n\n"

Reaches = Callable[[str], bool]  # whether a subscriber may see the job of this name


@dataclass(frozen=True)
class Event:
    """`key`: what it is about; empty: it only tells. `job_name`: only those who may see this job get it.

    `parts`, by the name of a job: what those who may not see all jobs get of `data`, see `for_view`.
    """

    name: str
    data: bytes  # JSON in one line
    key: str = ""
    job_name: str | None = None
    gone: bool = False  # what it is about is no more: a new subscriber need not know
    parts: Parts | None = None


@dataclass(frozen=True)
class Parts:
    """An event about many jobs in pieces. `join` puts those together that somebody may see."""

    jobs: tuple[tuple[str, bytes], ...]  # name of the job, piece
    join: Callable[[list[bytes]], bytes]


@dataclass(frozen=True)
class View:
    """What a subscriber may see. Subscribers with the same `name` see the same, and share what is encoded."""

    name: str  # "": everything
    reaches: Reaches


EVERYTHING: Final = View("", lambda _: True)


class Place(NamedTuple):
    """Where a subscriber is: it has everything up to this number, of this log, in this view."""

    log: str
    view: str
    number: int

    @classmethod
    def parsed(cls, text: str) -> Place | None:
        """Return None for what no log has ever said."""
        log, _, rest = text.partition(".")
        view, _, number = rest.rpartition("-")
        if not log or len(text) > 100 or not number.isascii() or not number.isdigit():
            return None
        return cls(log, view, int(number))

    def __str__(self) -> str:
        return f"{self.log}.{self.view}-{self.number}"


class Numbered(NamedTuple):
    number: int
    event: Event


@dataclass
class _Shared:
    """What the last subscribers got: the others of the same view at the same place get the same bytes."""

    upto: int = -1
    texts: dict[tuple[str, int], bytes] = field(default_factory=dict)


class EventLog:
    """`name` is another one for each log that ever was."""

    def __init__(self, name: str, *, most_told: int = MOST_TOLD, most_bytes: int = MOST_BYTES) -> None:
        self.name = name
        self._most_told = most_told
        self._most_bytes = most_bytes
        self._last = 0
        self._since = 0  # what subscribers must have to go on: later events are all here
        self._kept: OrderedDict[str, Numbered] = OrderedDict()  # by key, in the order of their numbers
        self._passing: deque[str] = deque()  # keys of events that may be dropped, oldest first
        self._passing_bytes = 0
        self._shared = _Shared()

    @property
    def last(self) -> int:
        return self._last

    @property
    def size(self) -> int:
        """The bytes of all events that are kept."""
        return sum(len(each.event.data) for each in self._kept.values())

    @property
    def state(self) -> Mapping[str, Event]:
        """What is, by key."""
        return {key: each.event for key, each in self._kept.items() if each.event.key and not each.event.gone}

    def add(self, event: Event) -> None:
        self._last += 1
        key = event.key or f"\0{self._last}"
        if (before := self._kept.pop(key, None)) is not None and before.event.gone:
            self._passing.remove(key)
            self._passing_bytes -= len(before.event.data)
        self._kept[key] = Numbered(self._last, event)
        if event.gone or not event.key:
            self._passing.append(key)
            self._passing_bytes += len(event.data)
            while len(self._passing) > self._most_told or (
                self._passing_bytes > self._most_bytes and len(self._passing) > 1
            ):
                dropped = self._kept.pop(self._passing.popleft())
                self._passing_bytes -= len(dropped.event.data)
                self._since = dropped.number

    def goes_on(self, place: Place, view: View) -> bool:
        """Whether a subscriber can go on from there: nothing that it has missed was dropped."""
        return (place.log, place.view) == (self.name, view.name) and self._since <= place.number <= self._last

    def whole(self, view: View) -> bytes:
        """Return the complete state as text of the stream. Only its end is a place.

        Who has a part of it comes back with an id that is none, gets a `reset`, and forgets that part.
        """
        return self._text(-1, view, self._whole)

    def after(self, number: int, view: View) -> bytes | None:
        """Return what came after this number. None: some of it was dropped. Empty: nothing for this view."""
        if not self._since <= number <= self._last:
            return None
        return self._text(number, view, lambda of: self._later(number, of))

    def _text(self, number: int, view: View, make: Callable[[View], bytes]) -> bytes:
        if self._shared.upto != self._last:
            self._shared = _Shared(self._last)
        found = self._shared.texts.get((view.name, number))
        if found is None:
            found = make(view)
            if len(self._shared.texts) < MOST_SHARED:
                self._shared.texts[view.name, number] = found
        return found

    def _whole(self, view: View) -> bytes:
        state = [each for each in self._kept.values() if each.event.key and not each.event.gone]
        return _BEGUN + b"".join(_shown(each, view) for each in state) + self._id(self._last, view) + b"\n"

    def _later(self, number: int, view: View) -> bytes:
        pieces = []
        for each in reversed(self._kept.values()):
            if each.number <= number:
                break
            if text := _shown(each, view):
                pieces.append(self._id(each.number, view) + text)
        return b"".join(reversed(pieces))

    def _id(self, number: int, view: View) -> bytes:
        return f"id: {Place(self.name, view.name, number)}\n".encode()


def _shown(each: Numbered, view: View) -> bytes:
    """Return the event as text of the stream; empty if it is not for this view."""
    event, data = each.event, each.event.data
    if event.job_name is not None and not view.reaches(event.job_name):
        return b""
    if event.parts is not None and view.name:
        data = event.parts.join([piece for name, piece in event.parts.jobs if view.reaches(name)])
    return b"event: %s\ndata: %s\n\n" % (event.name.encode(), data)


def told(name: str) -> bytes:
    """Return an event without data of its own, which is no part of any log."""
    return b"event: %s\ndata: {}\n\n" % name.encode()
