"""The HTTP endpoint of a cluster: the addresses of its daemons, one of which leads (A13).

A standby redirects to the leader, and the request is sent again there. Bodies are bytes, not streams, so they can be
sent twice. While there is no leader, a request has no effect, so any request can be repeated.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import aiohttp
import msgspec
from yarl import URL

from minflinkd.cli.credentials import SOCKET_URL, Credentials
from minflinkd.cli.speaking_tls import speaks_tls
from minflinkd.rest.schemas import ErrorAnswer, FlinkError
from minflinkd.rest.schemas.answer import FULL_ERRORS
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind, MinflinkError
from minflinkd.runtime.tls_faults import NO_TLS, why_refused

PATIENCE = 30.0  # seconds to wait for a leader
CONNECT_TIMEOUT = 5.0  # seconds
FIRST_PAUSE = 0.1  # seconds
LONGEST_PAUSE = 1.0
HOPS = 3  # redirections to follow

_REDIRECT: Final = 307
UNAVAILABLE: Final = 503
_LATER: Final = (502, UNAVAILABLE)  # 502: from a standby or another proxy that got no answer from the leader
_CUT_OFF = (aiohttp.ClientError, TimeoutError, ConnectionError)
_TAKES: Final = {"Accept": f"{FULL_ERRORS}, */*"}
_NOT_CONNECTED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)  # so nothing was sent


class DaemonUnreachable(MinflinkError):
    """No answer; the outcome of the request is unknown."""

    code = "daemon-unreachable"
    consequence = Consequence.RETRYABLE


class Refused(MinflinkError):
    """The daemon's answer was an error."""

    def __init__(self, status: int, answer: ErrorAnswer) -> None:
        super().__init__(answer.errors[0] if answer.errors else f"HTTP {status}")
        self.status = status
        self.answer = answer

    def info(self) -> ErrorInfo:
        later = Consequence.RETRYABLE if self.status in _LATER else Consequence.REFUSED
        answer = self.answer
        return ErrorInfo(code=answer.code, message=self.message, consequence=later, kind=answer.kind, hint=answer.hint)


@dataclass(frozen=True)
class Stream:
    """An answer without an end. `silence`: seconds after which a connection that says nothing is given up."""

    headers: Mapping[str, str]
    silence: float


def addresses(text: str) -> tuple[str, ...]:
    """Split a list of URLs at its commas. `http://` may be left out."""
    found = (part.strip().rstrip("/") for part in text.split(","))
    return tuple(each if "://" in each else f"http://{each}" for each in found if each) or (text,)


class Endpoint:
    def __init__(
        self,
        urls: str,
        *,
        timeout: float,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`urls`: of one daemon, or of several, separated by commas. `timeout`: for one request, in seconds.

        `tls`: for `https` URLs; without it, the CAs of this machine.
        """
        self._tls = tls
        self._addresses = addresses(urls)
        self._credentials = credentials or Credentials()
        self._over_sockets: dict[str, aiohttp.ClientSession] = {}
        self._leader = ""  # the address to which a standby has redirected
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = self._new_session(None)
        return self

    def _new_session(self, path: str | None) -> aiohttp.ClientSession:
        """`path`: of a Unix socket."""
        timeout = aiohttp.ClientTimeout(total=self._timeout, sock_connect=CONNECT_TIMEOUT)
        connector = aiohttp.TCPConnector(ssl=self._tls or True) if path is None else aiohttp.UnixConnector(path)
        return aiohttp.ClientSession(timeout=timeout, connector=connector)

    async def aclose(self) -> None:
        session, self._session = self._session, None
        for each in (session, *self._over_sockets.values()):
            if each is not None:
                await each.close()
        self._over_sockets = {}

    def knows_also(self, urls: Iterable[str]) -> None:
        """Ask these daemons after the others."""
        self._addresses += tuple(url for url in urls if url not in self._addresses)

    @property
    def url(self) -> str:
        """The daemon that answered last; before the first answer, the first in the list."""
        return self._leader or self._addresses[0]

    @asynccontextmanager
    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        document: bytes | None = None,
        timeout: float = 0.0,
        until: float = 0.0,
        stream: Stream | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the leader's answer. Waits for a leader until `until`, a monotonic time.

        `stream`: the answer goes on for as long as it is read. Raises DaemonUnreachable, also while the answer is read,
        and Refused if there is no leader in time.
        """
        options: dict[str, Any] = {"params": query, "headers": dict(_TAKES)}
        if document is not None:
            options["data"] = document
            options["headers"]["Content-Type"] = "application/json"
        if timeout:
            total = max(timeout, self._timeout)
            options["timeout"] = aiohttp.ClientTimeout(total=total, sock_connect=CONNECT_TIMEOUT)
        if stream is not None:
            options["headers"] = stream.headers
            options["timeout"] = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT, sock_read=stream.silence)
        pause = FIRST_PAUSE
        while True:
            try:
                response = await self._answer(method, path, options)
                break
            except Refused:  # nobody leads
                if time.monotonic() + pause > until:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        try:
            async with response:
                yield response
        except _CUT_OFF as error:
            raise self._unreachable(error) from error

    async def _answer(self, method: str, path: str, options: Mapping[str, Any]) -> aiohttp.ClientResponse:
        """Ask one daemon after the other. Raises DaemonUnreachable, or Refused if no daemon that answers leads."""
        refused: Refused | None = None
        reasons: list[str] = []  # for which there is no TLS, or TLS only
        hints: dict[str, None] = {}
        for base in ((self._leader,) if self._leader else ()) + self._addresses:
            try:
                response = await self._led(base, method, path, options)
            except _NOT_CONNECTED as error:
                if why := why_refused(error):
                    reasons.append(f"{base}: {why}")
                    hints[_hint(base, why)] = None
                self._leader = "" if base == self._leader else self._leader
                continue
            except _CUT_OFF as error:
                failed, asked = self._unreachable(error), self._leader or base
                self._leader = ""
                self._prefer_after(base)
                if not (asked.startswith("http://") and await speaks_tls(URL(asked))):
                    raise failed from error
                reasons.append(f"{asked}: this port speaks TLS, and was asked without it")  # so nothing was done
                hints[f"use {asked.replace('http', 'https', 1)}"] = None
            except Refused as error:
                self._leader = ""
                refused = error
            else:
                self._prefer(base)
                return response
        if refused is not None:
            raise refused
        if reasons:
            raise DaemonUnreachable("\n".join(reasons), hint="\n".join(hints))
        raise DaemonUnreachable(
            f"no daemon answers at {', '.join(self._addresses)}",
            hint="is it running? start it with `minflinkd serve`, or name another one with --url",
        )

    async def _led(self, base: str, method: str, path: str, options: Mapping[str, Any]) -> aiohttp.ClientResponse:
        """Ask one daemon, and follow its redirections. Raises Refused if nobody leads, and aiohttp's errors.

        An error in `_NOT_CONNECTED` means that `base` itself could not be reached.
        """
        socket = base.removeprefix(SOCKET_URL) if base.startswith(SOCKET_URL) else ""
        url = URL(("http://localhost" if socket else base) + path)
        response = await self._at(url, method, options, socket)
        for _ in range(HOPS):
            if response.status == UNAVAILABLE:
                error = refusal(response.status, await response.read())
                if error.answer.kind is Kind.NO_LEADER:
                    raise error
            if response.status != _REDIRECT or not (place := response.headers.get("Location", "")):
                return response
            response.release()
            leader = URL(place, encoded=True)
            self._leader = str(leader.origin())
            try:
                response = await self._at(leader, method, {**options, "params": None})  # Location has the parameters
            except _NOT_CONNECTED as error:
                raise _no_leader(f"the leader, or the previous leader, does not answer at {self._leader}") from error
        response.release()
        raise _no_leader("the daemons do not agree which of them leads")

    async def _at(
        self, url: URL, method: str, options: Mapping[str, Any], named_socket: str = ""
    ) -> aiohttp.ClientResponse:
        """Send a request: over a Unix socket if one is named, or if the daemon of this address has one here.

        Raises UnusableTokenFile, and aiohttp's errors.
        """
        if self._session is None:
            raise RuntimeError("the client is not open: use it with `async with`")
        # Who names a CA wants to see whether the daemon's certificate is right.
        path = named_socket or (None if self._tls else self._credentials.socket(url))
        if path:
            asked = _with_token(options, self._credentials.named_token())
            local = url.with_scheme("http")  # there is no TLS over a socket of this machine
            try:
                return await self._over_socket(path).request(method, local, allow_redirects=False, **asked)
            except _NOT_CONNECTED:  # a daemon that was killed has left it
                if named_socket:
                    raise
        asked = _with_token(options, self._credentials.token(url))
        return await self._session.request(method, url, allow_redirects=False, **asked)

    def _over_socket(self, path: str) -> aiohttp.ClientSession:
        if path not in self._over_sockets:
            self._over_sockets[path] = self._new_session(path)
        return self._over_sockets[path]

    def _prefer(self, base: str) -> None:
        """Ask this one first from now on."""
        if base in self._addresses:
            at = self._addresses.index(base)
            self._addresses = self._addresses[at:] + self._addresses[:at]

    def _prefer_after(self, base: str) -> None:
        self._prefer(base)
        if base in self._addresses:
            self._addresses = (*self._addresses[1:], self._addresses[0])

    def _unreachable(self, error: Exception) -> DaemonUnreachable:
        if why := why_refused(error):
            return DaemonUnreachable(
                f"{self.url}: {why}",
                hint="name a certificate from the CA of the daemon's clients (security.ssl.rest.client-ca) with "
                "--cert-file or $MINFLINKD_CERT_FILE",
            )
        why = str(error) or type(error).__name__
        return DaemonUnreachable(f"the daemon at {self.url} did not answer: {why}", hint="its log may say why")


def _hint(base: str, why: str) -> str:
    """Return what to do if there is no TLS with the daemon at `base`."""
    if why == NO_TLS and base.startswith("https://"):
        return f"use {base.replace('https', 'http', 1)}: that port speaks HTTP without TLS, or is no daemon's"
    return "name the daemon's CA with --ca-file or $MINFLINKD_CA_FILE, and the host as in --url"


def _with_token(options: Mapping[str, Any], token: str | None) -> Mapping[str, Any]:
    if token is None:
        return options
    return {**options, "headers": {**options.get("headers", {}), "Authorization": f"Bearer {token}"}}


def refusal(status: int, body: bytes) -> Refused:
    try:
        return Refused(status, msgspec.json.decode(body, type=ErrorAnswer))
    except msgspec.MsgspecError:
        pass
    try:  # what is between us and the daemon may have changed our `Accept`
        errors = msgspec.json.decode(body, type=FlinkError).errors
    except msgspec.MsgspecError:
        errors = (f"HTTP {status}: {body[:200].decode(errors='replace')}",)
    return Refused(status, ErrorAnswer(errors=errors, code="http"))


def _no_leader(why: str) -> Refused:
    hint = "tasks keep running; try again in a moment"
    return Refused(UNAVAILABLE, ErrorAnswer(errors=(why,), code="no-leader", kind=Kind.NO_LEADER, hint=hint))
