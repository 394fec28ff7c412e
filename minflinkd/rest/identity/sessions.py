"""Log-ins of browsers: sessions that a cookie names, and codes that open one session each (E41).

They are kept in memory: after a restart of the daemon, log in again.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from typing import Final, Generic, NamedTuple, TypeVar

from minflinkd.rest.identity.roles import Identity
from minflinkd.runtime.clock import Clock

LIFETIME: Final = 12 * 3600.0  # seconds of a session
MOST: Final = 1000  # sessions; the oldest ends for another one
CODE_LIFETIME: Final = 60.0  # seconds
MOST_CODES: Final = 100

T = TypeVar("T")


class _Entry(NamedTuple, Generic[T]):
    value: T
    until: float  # monotonic


class SecretBook(Generic[T]):
    """Values under secrets that it draws. Only hashes of the secrets are kept, the newest `most` of them."""

    def __init__(self, clock: Clock, *, lifetime: float, most: int) -> None:
        self._clock = clock
        self._lifetime = lifetime
        self._most = most
        self._entries: OrderedDict[bytes, _Entry[T]] = OrderedDict()

    def add(self, value: T) -> str:
        """Return the secret under which the value can be found."""
        secret = secrets.token_urlsafe(32)
        self._entries[_key(secret)] = _Entry(value, self._clock.monotonic() + self._lifetime)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)
        return secret

    def find(self, secret: str) -> T | None:
        entry = self._entries.get(_key(secret))
        return entry.value if entry is not None and entry.until > self._clock.monotonic() else None

    def take(self, secret: str) -> T | None:
        """Return the value, and forget it."""
        found = self.find(secret)
        self._entries.pop(_key(secret), None)
        return found


class Sessions:
    def __init__(self, clock: Clock) -> None:
        self.open = SecretBook[Identity](clock, lifetime=LIFETIME, most=MOST)
        self.codes = SecretBook[Identity](clock, lifetime=CODE_LIFETIME, most=MOST_CODES)


def _key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="replace")).digest()
