"""TLS from PEM files (E42): contexts for servers and clients, which follow the files when these change.

TLS 1.2 at least. A client checks that the server's certificate comes from its CA and names the host. A server that
wants certificates of its clients checks them against the same CA, unless there is another one for them.

A certificate is replaced while connections live: they go on, and new ones use the new files. Nothing is restarted.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import structlog

from minflinkd.runtime.doorkeeper import FIRST_BYTE, SeldomTold
from minflinkd.runtime.errors import Consequence, Kind, MinflinkError
from minflinkd.runtime.tls_faults import why_refused

log = structlog.get_logger(__name__)

HANDSHAKE_TIMEOUT = FIRST_BYTE  # seconds; until then, a connection is nobody's
LOOK = 1.0  # seconds between two looks at the files


class UnusableCertificate(MinflinkError):
    """A file with a certificate, a key or a CA cannot be used."""

    code = "unusable-certificate"


class TlsRefused(MinflinkError):
    """TLS with another process did not come about; the message says why."""

    code = "tls-refused"
    consequence = Consequence.RETRYABLE  # files may be replaced at any time
    kind = Kind.CLUSTER


class Clients(Enum):
    """Whether a server wants the certificates of its clients."""

    NEED_A_CERTIFICATE = "need"
    MAY_HAVE_ONE = "may"  # one that is shown must be good
    NEED_NONE = "none"


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """PEM files. The first certificate in `certificate` is the process's own, the others lead to the CA.

    `client_ca`: by which a server checks its clients; None: by `ca`.
    """

    certificate: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    client_ca: Path | None = None


class _Certified(ssl.SSLContext):
    """Made from the files as they were at one time."""

    fingerprint: bytes = b""  # SHA-256 of the own certificate


class _Following(ssl.SSLContext):
    """Stands for the newest context: asyncio calls `wrap_bio` for each connection."""

    newest: Callable[[], ssl.SSLContext]

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self.newest().wrap_bio(*args, **options)


class Tls:
    """The contexts for one set of files. Raises UnusableCertificate.

    `server` and `client` may be kept; they always stand for the newest files. If new files cannot be used, the earlier
    ones stay in use, and the log says so.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._told: defaultdict[str, SeldomTold] = defaultdict(SeldomTold)  # by reason
        self._contexts: dict[Clients | None, _Certified] = {}  # None: as a client
        self._read = self._changed_at()
        self._looked = time.monotonic()
        self._context(None)
        if files.certificate is not None:
            self._context(Clients.NEED_NONE)

    def server(self, clients: Clients) -> ssl.SSLContext:
        """Raises UnusableCertificate."""
        self._context(clients)
        following = _Following(ssl.PROTOCOL_TLS_SERVER)
        following.newest = lambda: self._newest(clients)
        return following

    @property
    def client(self) -> ssl.SSLContext:
        following = _Following(ssl.PROTOCOL_TLS_CLIENT)
        following.newest = lambda: self._newest(None)
        return following

    def _newest(self, use: Clients | None) -> _Certified:
        self._look()
        return self._context(use)

    def _look(self) -> None:
        """Read the files again if they have changed. They are small and change rarely, so no thread is needed."""
        if time.monotonic() < self._looked + LOOK:
            return
        self._looked = time.monotonic()
        if (now := self._changed_at()) == self._read:
            return
        self._read = now
        try:
            contexts = {use: self._made(use) for use in self._contexts}
        except UnusableCertificate as error:  # perhaps only one of two files is replaced as yet
            log.warning("changed certificates cannot be used; the earlier ones stay in use", error=str(error))
            return
        self._contexts = contexts
        log.info("certificates were read again", certificate=str(self._files.certificate or ""))

    def _changed_at(self) -> tuple[tuple[int, int, int] | None, ...]:
        files = self._files
        return tuple(map(_state, (files.certificate, files.key, files.ca, files.client_ca)))

    def _context(self, use: Clients | None) -> _Certified:
        if use not in self._contexts:
            self._contexts[use] = self._made(use)
        return self._contexts[use]

    def _made(self, use: Clients | None) -> _Certified:
        """Raises UnusableCertificate."""
        files = self._files
        context = _Certified(ssl.PROTOCOL_TLS_CLIENT if use is None else ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if use is not None:
            context.sslobject_class = _told_by(self._told)
        if files.certificate is not None and files.key is not None:
            context.fingerprint = _load_own(context, files.certificate, files.key)
        if use is Clients.NEED_A_CERTIFICATE:
            context.verify_mode = ssl.CERT_REQUIRED
        elif use is Clients.MAY_HAVE_ONE:
            context.verify_mode = ssl.CERT_OPTIONAL
        ca = files.ca if use is None else files.client_ca or files.ca
        if ca is not None:
            _load_ca(context, ca)
        elif use is None:
            context.load_default_certs()
        return context


def server_certificate(writer: asyncio.StreamWriter) -> bytes:
    """Return the SHA-256 of the certificate of this connection's server, at both its ends. Empty: without TLS.

    It binds what is said in the connection to the connection, like `tls-server-end-point` of RFC 5929: nobody without
    the server's key can be between its ends. (Python does not offer `tls-exporter` of RFC 9266.)
    """
    connection: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
    if connection is None:
        return b""
    if connection.server_side:
        context = connection.context
        assert isinstance(context, _Certified)
        return context.fingerprint
    return hashlib.sha256(connection.getpeercert(binary_form=True) or b"").digest()


def _state(file: Path | None) -> tuple[int, int, int] | None:
    try:
        found = None if file is None else os.stat(file)
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_ino, found.st_size)


def _load_own(context: ssl.SSLContext, certificate: Path, key: Path) -> bytes:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
        text = certificate.read_text(encoding="ascii")
        end = "-----END CERTIFICATE-----"
        first = text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)]
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).digest()
    except (OSError, ValueError) as error:
        raise UnusableCertificate(
            f"the certificate {certificate} and its key {key} cannot be used: {_reason(error)}",
            hint="both must be PEM files, the key without a password and belonging to the certificate; "
            "`minflinkd tls init` makes such files",
        ) from error


def _load_ca(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise UnusableCertificate(
            f"the CA {ca} cannot be used: {_reason(error)}", hint="it must be a PEM file with certificates"
        ) from error


def _no_password() -> bytes:
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error)


# Failures of which a server tells the client by an alert. After others, the client is no TLS client.
_TOLD_TO_CLIENTS = {"CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE", "UNSUPPORTED_PROTOCOL"}


def _told_by(told: defaultdict[str, SeldomTold]) -> type[ssl.SSLObject]:
    """Return a class that logs why a handshake of a server failed, and lets the client know. asyncio does neither."""

    class Told(ssl.SSLObject):
        _failed: ssl.SSLError | None = None

        def do_handshake(self) -> None:
            if self._failed is not None:
                raise self._failed
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                why = why_refused(error) or str(error)
                told[why].warn("a connection was refused", error=why)
                if error.reason not in _TOLD_TO_CLIENTS:
                    raise
                # asyncio would drop the alert with the connection. So it is told to wait for the client, and sends the
                # alert. Then the client leaves; if it does not, the timeout of the handshake ends the connection.
                self._failed = error
                raise ssl.SSLWantReadError from error

    return Told
