"""TLS: which connections use it, and the files with certificates (E42)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minflinkd.config.declaration import option
from minflinkd.runtime.tls import Tls, TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTls:
    """TLS between the daemon and TaskManagers: messages, blobs and exchanges."""

    enabled: bool = option(
        "security.ssl.internal.enabled",
        False,
        "Whether the daemon and TaskManagers use TLS among themselves: for messages, blobs and exchanges. For messages "
        "and exchanges both sides show a certificate. It must be the same for the daemon and all TaskManagers.",
    )
    certificate: str = option(
        "security.ssl.internal.certificate",
        "",
        "PEM file with the certificate that this process shows, and those that lead to the CA. It must name this host "
        "as others reach it. Changed files are used for new connections, without a restart.",
    )
    key: str = option("security.ssl.internal.key", "", "PEM file with the key of that certificate, without a password.")
    ca: str = option(
        "security.ssl.internal.ca",
        "",
        "PEM file with the certificates of the CA from which all of the cluster's certificates come.",
    )

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(certificate=Path(self.certificate), key=Path(self.key), ca=Path(self.ca))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestTls:
    """TLS for the HTTP endpoint."""

    enabled: bool = option(
        "security.ssl.rest.enabled",
        False,
        "Whether the HTTP endpoint uses TLS (https). Clients do not need a certificate.",
    )
    certificate: str = option(
        "security.ssl.rest.certificate",
        "",
        "PEM file with the certificate of the HTTP endpoint, and those that lead to the CA. It must name rest.address. "
        "Changed files are used for new connections, without a restart.",
    )
    key: str = option("security.ssl.rest.key", "", "PEM file with the key of that certificate, without a password.")
    ca: str = option(
        "security.ssl.rest.ca",
        "",
        "PEM file with the CA by which a standby checks the leader's certificate (rest.standby: proxy). Empty: the CAs "
        "of this machine.",
    )

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(certificate=Path(self.certificate), key=Path(self.key), ca=Path(self.ca) if self.ca else None)


def tls_of(options: InternalTls | RestTls) -> Tls | None:
    """Return the contexts, or None without TLS. Raises UnusableCertificate."""
    return Tls(options.files) if options.enabled else None
