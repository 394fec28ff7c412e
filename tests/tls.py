"""A small CA and certificates for tests of TLS."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes

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

    def client(self, name: str, *alternative: x509.GeneralName, days: float = 1) -> TlsFiles:
        """Make a certificate for a client alone, with these alternative names."""
        issued = issue(self._issued, name, (), days=days)
        if alternative:
            found = issued.certificate
            builder = x509.CertificateBuilder(
                found.issuer, found.subject, found.public_key(), found.serial_number,
                found.not_valid_before_utc, found.not_valid_after_utc, list(found.extensions),
            ).add_extension(x509.SubjectAlternativeName(alternative), critical=False)  # fmt: skip
            issued = Issued(builder.sign(self._issued.key, hashes.SHA256()), issued.key)
        return self._written(name, issued, None)

    def expired(self, name: str = "expired") -> TlsFiles:
        begins = datetime.now(UTC) - timedelta(days=3)
        return self._written(name, issue(self._issued, name, LOOPBACK, days=1, begins=begins), None)

    def _written(self, name: str, issued: Issued, ca: Path | None) -> TlsFiles:
        certificate, key = self.directory / f"{name}.pem", self.directory / f"{name}-key.pem"
        issued.write(certificate, key)
        return TlsFiles(certificate=certificate, key=key, ca=ca or self.ca)


def everywhere(files: TlsFiles) -> dict[str, object]:
    """Return the settings of a daemon with TLS on every connection."""
    named = {
        f"security.ssl.{which}.{name}": str(getattr(files, name))
        for which in ("internal", "rest")
        for name in ("certificate", "key", "ca")
    }
    return named | {"security.ssl.internal.enabled": True, "security.ssl.rest.enabled": True}
