"""How the command line shows a daemon who it is: over the Unix socket of a daemon on this machine, or by a token (E40).

Or by a certificate, with an `https` URL (E42): `--cert-file` and $MINFLINKD_CERT_FILE. A token that is found counts
first. Who names a certificate does not want the Unix socket.

A token is read from a file, never from a command line, which every user of a machine can see. In this order:
`--token-file`; the file that the context in use names (`target.py`); $MINFLINKD_TOKEN_FILE; the file `token` in
~/.config/minflinkd; for a daemon on this machine the token in its state directory, if this user may read it. The last
one goes to that daemon only: another user could listen at a port that a daemon has left.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from yarl import URL

from minflinkd.cli.contexts import user_directory
from minflinkd.cli.token_file import UnfitFile, token_in
from minflinkd.config import Config
from minflinkd.config.directories import state_directory
from minflinkd.runtime import local_socket
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.tls import Tls, TlsFiles

VARIABLE: Final = "MINFLINKD_TOKEN_FILE"
CERT_VARIABLE: Final = "MINFLINKD_CERT_FILE"
KEY_VARIABLE: Final = "MINFLINKD_KEY_FILE"
SOCKET_URL: Final = "unix://"  # followed by the path of a socket: an address of its own
_HERE: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_SYSTEM: Final = Path("/var/lib/minflinkd")  # systemd's StateDirectory=minflinkd
_READY: Final = "daemon.json"  # the daemon's address and pid, while it runs
_OWN_TOKEN: Final = "http.token"  # noqa: S105  # the name of a file


class UnusableTokenFile(MinflinkError):
    """The file that should hold a token for the command line cannot be read, or is open to others."""

    code = "unusable-token-file"
    consequence = Consequence.REFUSED


class _Ready(msgspec.Struct, frozen=True):
    url: str
    pid: int


@dataclass(frozen=True)
class Credentials:
    token_file: Path | None = None  # that the user has named
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    cert_file: Path | None = None  # likewise
    key_file: Path | None = None  # of that certificate; None: it is in the same file

    def tls(self, ca_file: str | None) -> ssl.SSLContext | None:
        """Return how to connect to an `https` URL; None: with the CAs of this machine, and without a certificate.

        Raises UnusableCertificate.
        """
        certificate = self.cert_file or _path(self.environ.get(CERT_VARIABLE))
        key = self.key_file or _path(self.environ.get(KEY_VARIABLE)) or certificate
        if not ca_file and certificate is None:
            return None
        files = TlsFiles(certificate=certificate, key=key, ca=_path(ca_file))
        return Tls(files).client

    def socket(self, url: URL) -> str | None:
        """Return the path of the Unix socket at which the daemon of this address also answers, if there is one."""
        if url.scheme not in ("http", "https") or url.host not in _HERE or url.port is None:
            return None
        found = local_socket.find(url.port, self.environ)
        return None if found is None else str(found)

    def named_token(self) -> str | None:
        """Return the token in the file that the user has named, if there is one. Raises UnusableTokenFile."""
        named = self.token_file or (Path(given) if (given := self.environ.get(VARIABLE, "")) else None)
        return None if named is None else _read(named, named=True)

    def token(self, url: URL) -> str | None:
        """Return the token for the daemon at this address; None if there is none. Raises UnusableTokenFile."""
        if (named := self.named_token()) is not None:
            return named
        return _read(user_directory(self.environ) / "token", named=False) or self._of_daemon(url)

    def _of_daemon(self, url: URL) -> str | None:
        """Return the own token of the daemon that runs at this address of this machine, if its files can be read."""
        if url.host not in _HERE:
            return None
        for state in (state_directory(Config(), self.environ), _SYSTEM):
            with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
                ready = msgspec.json.decode((state / _READY).read_bytes(), type=_Ready)
                at = URL(ready.url)
                process = Path(f"/proc/{ready.pid}").stat()  # if the pid was taken again, perhaps by another user's
                if (at.port, at.host in _HERE, process.st_uid) == (url.port, True, state.stat().st_uid):
                    return _read(state / _OWN_TOKEN, named=False)
        return None


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _read(path: Path, *, named: bool) -> str | None:
    """Return the token in the file; None if there is no such file and it was not `named`. Raises UnusableTokenFile."""
    try:
        return token_in(path)
    except OSError as error:
        if not named:
            return None
        raise UnusableTokenFile(
            f"the file of the token, {path}, cannot be read: {error.strerror or error}",
            hint=f"name a file that this user can read, with --token-file or ${VARIABLE}",
        ) from error
    except UnfitFile as error:
        raise UnusableTokenFile(error.problem, hint=error.hint) from error
