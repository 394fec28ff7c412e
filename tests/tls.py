"""A small CA and certificates for tests of TLS."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from minflinkd.cli.small_ca import Issued, issue, new_ca
from minflinkd.runtime.tls import TlsFiles

LOOPBACK = ("localhost", "127.0.0.1")


class CaInTest:
    """A CA in `directory`, and what it signs."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.ca = directory / "ca.pem"
        self._issued = new_ca()
        self._issued.write(self.ca, directory / "ca-key.pem")

    def files(self, name: str = "internal", *, ca: Path | None = None, hosts: Sequence[str] = LOOPBACK) -> TlsFiles:
        """Make a certificate. `ca`: another one to check the other side by."""
        return self._written(name, issue(self._issued, name, hosts, days=1), ca)

    def expired(self, name: str = "expired") -> TlsFiles:
        begins = datetime.now(UTC) - timedelta(days=3)
        return self._written(name, issue(self._issued, name, LOOPBACK, days=1, begins=begins), None)

    def _written(self, name: str, issued: Issued, ca: Path | None) -> TlsFiles:
        certificate, key = self.directory / f"{name}.pem", self.directory / f"{name}-key.pem"
        issued.write(certificate, key)
        return TlsFiles(certificate=certificate, key=key, ca=ca or self.ca)
