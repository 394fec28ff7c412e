"""Where the API server is, and who the daemon is there: in a Pod, what Kubernetes gives to its service account."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from minflinkd.config.kubernetes_options import Kubernetes
from minflinkd.runtime.errors import MinflinkError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_AGE = 30.0  # seconds after which the file of the token is read again: Kubernetes replaces it before it expires


class UnusableAccess(MinflinkError):
    """The API server is not known, or what the daemon shows there cannot be read."""

    code = "kubernetes-access"


@dataclass(frozen=True)
class Access:
    server: str  # URL without a path
    namespace: str
    token_file: Path | None  # None: no token is shown, to a proxy on loopback
    ca_file: Path | None  # None: the system's CAs


def access_of(options: Kubernetes, environ: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> Access:
    """Return what the options say, and for the rest what a Pod finds in `directory`. Raises UnusableAccess."""
    server = options.api_server.rstrip("/") or _server_in_pod(environ)
    url = urlsplit(server)
    if url.scheme == "http" and not _is_loopback(url.hostname or ""):
        raise UnusableAccess(
            f"kubernetes.api-server ({server}) has no TLS, and the daemon's token could be read on the way",
            hint="write https://",
        )
    if url.scheme not in ("http", "https") or not url.hostname or url.path or url.query or url.username:
        raise UnusableAccess(
            f"kubernetes.api-server ({server!r}) is no URL of an API server", hint="write https://host:port"
        )
    return Access(
        server=server,
        namespace=options.namespace or _namespace(directory / "namespace"),
        token_file=_file(options.token_file, directory / "token"),
        ca_file=_file(options.ca_file, directory / "ca.crt"),
    )


def _server_in_pod(environ: Mapping[str, str]) -> str:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise UnusableAccess(
            "no API server is known: this process is in no Pod, and kubernetes.api-server is not set",
            hint="run the daemon in a Pod (docs/kubernetes.md), or set kubernetes.api-server, kubernetes.namespace, "
            "kubernetes.token-file and kubernetes.ca-file",
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _namespace(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UnusableAccess(f"the namespace is not known: {error}", hint="set kubernetes.namespace") from error


def _file(option: str, in_pod: Path) -> Path | None:
    return Path(option) if option else in_pod if in_pod.exists() else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Credentials:
    """The token and the CA of an Access. The token is read again from time to time, and after it was refused."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._token = ""
        self._read_at = float("-inf")

    async def headers(self) -> dict[str, str]:
        """Return the header that says who asks. Raises UnusableAccess."""
        if self._access.token_file is None:
            return {}
        if time.monotonic() - self._read_at > TOKEN_AGE:
            self._token = await asyncio.to_thread(_token, self._access.token_file)
            self._read_at = time.monotonic()
        return {"Authorization": f"Bearer {self._token}"}

    def refused(self) -> None:
        """Read the token again for the next request."""
        self._read_at = float("-inf")

    async def tls(self) -> ssl.SSLContext | bool:
        """Return how the server is checked. Raises UnusableAccess."""
        if self._access.ca_file is None:
            return True
        try:
            return await asyncio.to_thread(ssl.create_default_context, cafile=str(self._access.ca_file))
        except OSError as error:  # ssl.SSLError is one
            raise UnusableAccess(
                f"the CA of the API server, {self._access.ca_file}, cannot be read: {error}",
                hint="kubernetes.ca-file names a PEM file",
            ) from error


def _token(file: Path) -> str:
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise UnusableAccess(
            f"the token for the API server cannot be read: {error}",
            hint="set kubernetes.token-file, or give the Pod its service account's token "
            "(automountServiceAccountToken: true)",
        ) from error
    if not token.isprintable() or not token:
        raise UnusableAccess(f"{file} holds no token for the API server")
    return token
