"""A small CA of a cluster's own, and the certificates that it signs (E42)."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS = 3650
PAST = timedelta(hours=1)  # clocks differ


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def write(self, certificate: Path, key: Path) -> None:
        """Write both as PEM, the key for its owner only. Raises OSError."""
        written = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        _replace(key, written, 0o600)
        _replace(certificate, self.certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def new_ca(name: str = "minflinkd CA") -> Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} {secrets.token_hex(4)}")])
    now = datetime.now(UTC)
    builder = _builder(subject, subject, key, now - PAST, now + timedelta(days=CA_DAYS))
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return Issued(builder.sign(key, hashes.SHA256()), key)


def read_ca(certificate: Path, key: Path) -> Issued:
    """Raises OSError, and ValueError for files that are no CA."""
    found = serialization.load_pem_private_key(key.read_bytes(), password=None)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{key} is no key of a CA that this command has made")  # noqa: TRY004 - the file is at fault
    return Issued(x509.load_pem_x509_certificate(certificate.read_bytes()), found)


def issue(
    ca: Issued, name: str, hosts: Sequence[str], *, days: float, begins: datetime | None = None, client: bool = True
) -> Issued:
    """Return a certificate for these host names and addresses; without any, for a client alone.

    `client`: it may also be shown to a server.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    begins = begins or datetime.now(UTC) - PAST
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    uses = [ExtendedKeyUsageOID.SERVER_AUTH] * bool(hosts) + [ExtendedKeyUsageOID.CLIENT_AUTH] * client
    of_ca = ca.key.public_key()
    builder = _builder(subject, ca.certificate.subject, key, begins, begins + PAST + timedelta(days=days))
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(of_ca), critical=False)
    return Issued(builder.sign(ca.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Write a file that appears whole, or not at all, and is never readable by more users than `mode` says."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)  # whatever the umask
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
