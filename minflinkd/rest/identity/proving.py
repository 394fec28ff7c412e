"""Proves tokens without blocking the event loop, and remembers what it has proved for a short time (E41)."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import NamedTuple

from minflinkd.rest.errors import Overloaded, RequestError
from minflinkd.rest.identity.roles import Identity, Role
from minflinkd.rest.identity.tokens import OWN, Token, TokenRecord, matches
from minflinkd.runtime.clock import Clock

REMEMBERED = 60.0  # seconds for which a proved token needs no other proof
MOST_REMEMBERED = 1024
MOST_WAITING = 64  # proofs that wait for their turn; one runs at a time


class Unauthenticated(RequestError):
    """Nobody knows who asks. `reason`: in a word, for logs and metrics."""

    code = "unauthenticated"
    status = 401
    reason = "no-credentials"


class WrongToken(Unauthenticated):
    reason = "wrong-token"


class ExpiredToken(Unauthenticated):
    reason = "expired-token"


class ExpiredCertificate(Unauthenticated):
    reason = "expired-certificate"


class UnknownCertificate(Unauthenticated):
    """It is good, but no entry of the file of the tokens names it, or more than one does."""

    reason = "unknown-certificate"


class _Proved(NamedTuple):
    token_id: str
    until: float  # monotonic


class TokenProver:
    """`own`: the daemon's own token, which has every right."""

    def __init__(self, own: Token, records: Iterable[TokenRecord], clock: Clock, *, hint: str = "") -> None:
        self.own = own
        self._clock = clock
        self._hint = hint  # for those who have no token that is valid
        self._key = secrets.token_bytes(32)  # what is remembered is of no use outside of this process
        self._proved: OrderedDict[bytes, _Proved] = OrderedDict()
        self._proving = asyncio.Lock()
        self._waiting = 0
        self._records: dict[str, TokenRecord] = {}
        self._by_certificate: dict[str, TokenRecord] = {}
        self.replace(records)

    def replace(self, records: Iterable[TokenRecord]) -> None:
        """Take these tokens from now on. Sessions and tokens of others end at once."""
        self._records = {record.id: record for record in records}
        self._by_certificate = {each.certificate: each for each in self._records.values() if each.certificate}
        self._proved.clear()

    @staticmethod
    def knows(text: str) -> bool:
        """Whether this looks like one of minflinkd's own tokens."""
        return Token.parsed(text) is not None

    async def prove(self, text: str) -> Identity:
        """Raises WrongToken, ExpiredToken, Overloaded."""
        key = hmac.digest(self._key, text.encode(errors="replace"), "sha256")
        if (found := self._remembered(key)) is not None:
            return found
        token = Token.parsed(text)
        if token is None:
            raise WrongToken("the token is no token of minflinkd", hint=self._hint)
        if token.id == self.own.id:
            if not hmac.compare_digest(token.secret, self.own.secret):
                raise self._wrong()
        else:
            await self._prove(token, key)
        self._remember(key, token.id)
        identity = self.identity(token.id)
        if identity is None:  # the file was read again meanwhile
            raise self._wrong()
        return identity

    def identity(self, token_id: str) -> Identity | None:
        """Return whose token this is, as long as it is valid. Raises ExpiredToken."""
        if token_id == self.own.id:
            return Identity(name=OWN, role=Role.ADMIN, token_id=token_id)
        record = self._records.get(token_id)
        if record is None:
            return None
        if record.expired(self._clock.epoch_ms()):
            raise ExpiredToken(f"the token {record.name} has expired", hint="`minflinkd token create` makes another")
        return record.identity

    def identity_of_certificate(self, names: Collection[str]) -> Identity | None:
        """Return whose certificate has these names; None if nobody's. Raises ExpiredToken, UnknownCertificate."""
        found = [self._by_certificate[name] for name in names if name in self._by_certificate]
        if len(found) > 1:
            who = ", ".join(sorted(record.name for record in found))
            raise UnknownCertificate(
                f"the certificate is that of {who}: it is not certain who this is",
                hint="revoke all but one of these entries, or use another certificate",
            )
        return self.identity(found[0].id) if found else None

    async def _prove(self, token: Token, key: bytes) -> None:
        if token.id not in self._records:
            raise self._wrong()
        if self._waiting >= MOST_WAITING:
            raise Overloaded("too many tokens are being checked", hint="try again in a moment")
        self._waiting += 1
        try:
            async with self._proving:  # one at a time: each takes a core and memory
                record = self._records.get(token.id)
                if self._remembered(key) is not None:  # another request has proved it meanwhile
                    return
                if record is None or not await asyncio.to_thread(matches, token.secret, record.hash):
                    raise self._wrong()
                if self._records.get(token.id) != record:  # the file was read again meanwhile
                    raise self._wrong()
        finally:
            self._waiting -= 1

    def _remembered(self, key: bytes) -> Identity | None:
        found = self._proved.get(key)
        if found is None or found.until <= self._clock.monotonic():
            return None
        return self.identity(found.token_id)

    def _remember(self, key: bytes, token_id: str) -> None:
        self._proved[key] = _Proved(token_id, self._clock.monotonic() + REMEMBERED)
        self._proved.move_to_end(key)
        while len(self._proved) > MOST_REMEMBERED:
            self._proved.popitem(last=False)

    def _wrong(self) -> WrongToken:
        return WrongToken("the token is not valid here", hint=self._hint)
