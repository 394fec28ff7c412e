"""The search for the leader: which address a TaskManager tries, and when (A13). Does no I/O.

All listed addresses are tried at once, and again after pauses. Each has its own pauses, so a host that is gone delays
no other. A standby refuses, and may name the leader. The named address is tried in addition to the listed ones, even
if it is not listed. If it fails and is not listed, it is tried again only when it is named again, and never before its
pause is over. So standbys that name each other cost no more than as many listed daemons that do not answer.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from minflinkd.config.values import socket_addresses

RECONNECT_FIRST = 0.1  # seconds
RECONNECT_LONGEST = 3.0
RECONNECT_TO_ONE_OF_MANY = 0.5  # the longest pause if there are several daemons
HEAD_START = 1.0  # seconds by which the other daemons are tried before the one that has fallen silent
MOST_NAMED = 8  # addresses that are not listed; more than any cluster has daemons
FORGOTTEN = 30.0  # seconds after which an address that is not named again makes room for another one

Place = tuple[str, int]  # host and port


class Hint(Enum):
    """What a refusal says about the leader."""

    NOBODY = auto()  # the standby knows no leader
    NEW = auto()  # a leader other than the one that was named last
    UNUSABLE = auto()  # likewise, but the address is invalid or a loopback address, or too many others were named
    KNOWN = auto()  # the one that was named last, or the standby names itself


@dataclass
class _Candidate:
    listed: bool
    due: float | None  # None: it is being tried, or is not tried until it is named again
    free_at: float  # it is not tried before
    pause: float = RECONNECT_FIRST
    trying: bool = False


class Search:
    """One search, from the loss of a connection to the next one. All times are those of one clock, in seconds."""

    def __init__(self, listed: Iterable[Place], *, now: float, silent: Place | None = None) -> None:
        """`silent` is tried a little later than the others: the daemon there has fallen silent."""
        places = tuple(dict.fromkeys(listed))
        self._candidates = {
            place: _Candidate(listed=True, due=now + HEAD_START * (place == silent), free_at=now) for place in places
        }
        self._longest = longest_pause(several=len(places) > 1)
        self._named = ""

    @property
    def next_due(self) -> float | None:
        """The time of the next attempt; None: none before an attempt that is under way has ended."""
        return min((each.due for each in self._candidates.values() if each.due is not None), default=None)

    def due(self, now: float) -> tuple[Place, ...]:
        """Return the addresses to try now. Each attempt must end with `failed` or `refused`, unless the search ends."""
        found = tuple(place for place, it in self._candidates.items() if it.due is not None and it.due <= now)
        for place in found:
            it = self._candidates[place]
            it.due, it.trying = None, True
        return found

    def failed(self, place: Place, now: float) -> None:
        """Note that no daemon of this cluster answered there."""
        it = self._candidates[place]
        it.trying = False
        it.free_at = now + it.pause
        it.pause = min(2 * it.pause, self._longest)
        it.due = it.free_at if it.listed else None

    def refused(self, place: Place, leader: str, now: float) -> Hint:
        """Note that the daemon there is a standby. `leader` is the address that it names: host:port, or nothing."""
        self._longest = longest_pause(several=True)
        self.failed(place, now)
        if not leader:
            return Hint.NOBODY
        named = _place(leader)
        if named == place:
            return Hint.KNOWN
        usable = named is not None and (_is_loopback(place) or not _is_loopback(named)) and self._follow(named, now)
        before, self._named = self._named, leader
        if leader == before:
            return Hint.KNOWN
        return Hint.NEW if usable else Hint.UNUSABLE

    def _follow(self, named: Place, now: float) -> bool:
        """Try an address as soon as its pause is over. Return False if there is no room for it."""
        if (it := self._candidates.get(named)) is None:
            if not self._has_room(now):
                return False
            it = self._candidates[named] = _Candidate(listed=False, due=None, free_at=now)
        if not it.trying:
            it.due = max(now, it.free_at)
        return True

    def _has_room(self, now: float) -> bool:
        others = {place: it for place, it in self._candidates.items() if not it.listed}
        if len(others) < MOST_NAMED:
            return True
        for place, it in others.items():
            if it.due is None and not it.trying and it.free_at + FORGOTTEN <= now:
                del self._candidates[place]
                return True
        return False


def longest_pause(*, several: bool) -> float:
    """Return the longest pause between two attempts (seconds). With several daemons, a new leader is there soon."""
    return RECONNECT_TO_ONE_OF_MANY if several else RECONNECT_LONGEST


def _place(text: str) -> Place | None:
    try:
        (place,) = socket_addresses(text)
    except ValueError:
        return None
    return place


def _is_loopback(place: Place) -> bool:
    """Whether the address means the host of whoever uses it."""
    host, _ = place
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified
