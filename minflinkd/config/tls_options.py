"""TLS: which connections use it, and the files with certificates (E42)."""
# ruff: noqa: RUF009 - option() is dataclasses.field with the declaration as its metadata

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from minflinkd.config.declaration import option
from minflinkd.runtime.tls import Clients, Tls, TlsFiles


class ClientCertificates(StrEnum):
    """Whether clients of the HTTP endpoint show certificates."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


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
        "Whether the HTTP endpoint uses TLS (https). Clients need no certificate unless another option says so.",
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

    client_certificates: ClientCertificates = option(
        "security.ssl.rest.client-certificates",
        ClientCertificates.NONE,
        "Whether clients show a certificate. optional: one that is shown must be good. required: without one, no "
        "client connects, whatever it asks for. `minflinkd token create --certificate` says whose a certificate is, "
        "and what they may do; a token counts besides. Over the Unix socket there are none.",
    )
    client_ca: str = option(
        "security.ssl.rest.client-ca",
        "",
        "PEM file with the CA from which certificates of clients come. It should sign nothing else: whoever has a "
        "certificate of it can connect.",
    )

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(
            certificate=Path(self.certificate),
            key=Path(self.key),
            ca=Path(self.ca) if self.ca else None,
            client_ca=Path(self.client_ca) if self.client_ca else None,
        )

    @property
    def clients(self) -> Clients:
        return {
            ClientCertificates.NONE: Clients.NEED_NONE,
            ClientCertificates.OPTIONAL: Clients.MAY_HAVE_ONE,
            ClientCertificates.REQUIRED: Clients.NEED_A_CERTIFICATE,
        }[self.client_certificates]


def tls_of(options: InternalTls | RestTls) -> Tls | None:
    """Return the contexts, or None without TLS. Raises UnusableCertificate."""
    return Tls(options.files) if options.enabled else None
