"""Fetches one file from any URL that fsspec opens, and verifies it.

fsspec's file systems block, and some cannot be interrupted. So each fetch has a thread of its own. If it brings nothing
for a while it is given up: the thread ends with its next piece, or with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from minflinkd.jobgraph.faults import nearest
from minflinkd.jobgraph.places import Digest, Place, Url
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.secrets import without_credentials
from minflinkd.storage.masking import Mask, secrets_of

SILENCE: Final = 60.0  # seconds without a byte until a fetch is given up
CONNECT: Final = 20.0  # seconds until a web server must have taken the connection
_WEB: Final = frozenset({"http", "https"})
_PIECE: Final = 1 << 20  # bytes
_BLOCK: Final = 4 << 20  # bytes that a file system which reads ranges reads at a time

_EXTRAS: Final = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure",
    "hdfs": "hdfs", "viewfs": "hdfs",
}  # fmt: skip
_PACKAGES: Final = {  # modules that pip knows by another name
    "boxfs": "boxfs", "dask": "dask", "dropboxdrivefs": "dropboxdrivefs", "git": "pygit2", "paramiko": "paramiko",
    "smbprotocol": "smbprotocol", "smbclient": "smbprotocol", "webdav4": "webdav4[fsspec]", "fsspec_xrootd":
    "fsspec-xrootd", "lakefs_spec": "lakefs-spec", "gdrive_fsspec": "gdrive-fsspec", "libarchive": "libarchive-c",
    "morefs": "morefs[asynclocalfs]", "huggingface_hub": "huggingface-hub",
}  # fmt: skip


class UnknownUrlScheme(MinflinkError):
    """fsspec does not know the scheme, or the package for it is missing."""

    code = "url-unknown-scheme"
    consequence = Consequence.REFUSED


class UrlNotFound(MinflinkError):
    code = "url-not-found"
    consequence = Consequence.REFUSED


class UrlRefused(MinflinkError):
    """Permission, or a failure that another try would repeat."""

    code = "url-refused"
    consequence = Consequence.REFUSED


class UrlUnreachable(MinflinkError):
    code = "url-unreachable"
    consequence = Consequence.RETRYABLE


class FileTooLarge(MinflinkError):
    code = "url-too-large"
    consequence = Consequence.REFUSED


class HashDiffers(MinflinkError):
    code = "hash-differs"
    consequence = Consequence.REFUSED


async def fetch(place: Place, target: Path, *, largest: int, silence: float = SILENCE) -> None:
    """Write the content of a URL to `target`, at most `largest` bytes. Verifies the hash if the place has one.

    Raises UnknownUrlScheme, UrlNotFound, UrlRefused, UrlUnreachable, FileTooLarge, HashDiffers, and OSError for
    `target`. No message has a credential.
    """
    assert isinstance(place.file, Url)
    transfer = _Transfer(place.file, target, largest, place.digest)
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    threading.Thread(target=_run, args=(transfer, done), name=f"fetch {place.file}", daemon=True).start()
    try:
        while not done.done():
            left = transfer.moved_at + silence - time.monotonic()
            if left <= 0:
                raise UrlUnreachable(
                    f"{place} brought nothing for {silence:g} s", hint="try again; is there a proxy to name?"
                )
            await asyncio.wait({done}, timeout=left)
        found = done.result()
    finally:
        transfer.given_up = True
    _compare(place, found)


async def verify(place: Place) -> None:
    """Compare a local file with the hash of the place, if it has one. Raises HashDiffers, OSError."""
    if place.digest is not None and isinstance(place.file, Path):
        _compare(place, await asyncio.to_thread(_hash_of, place.file, place.digest.algorithm))


def _hash_of(file: Path, algorithm: str) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, algorithm).hexdigest()


def _compare(place: Place, found: str) -> None:
    if place.digest is not None and place.digest.value != found:
        raise HashDiffers(
            f"{place} has the {place.digest.algorithm} {found}, not {place.digest.value}",
            hint="the file was replaced or damaged: ask who publishes it, and do not just copy the new hash",
        )


@dataclass
class _Transfer:
    """Shared by the thread, which writes `moved_at`, and the waiting task, which writes `given_up`."""

    url: Url
    target: Path
    largest: int
    digest: Digest | None
    moved_at: float = field(default_factory=time.monotonic)
    given_up: bool = False

    def run(self) -> str:
        """Return the hash of what was written. Blocking. Raises what `fetch` raises."""
        inner, _, outer = self.url.text.rpartition("::")
        if not inner or Url(outer).schemes[0] not in _WEB:
            return self._copy(self.url, self.target)
        # Many web servers cannot send parts of an archive.
        archive = self.target.with_name(f"{self.target.name}.archive")
        try:
            self._copy(Url(outer), archive)
            return self._copy(Url(f"{inner}::file://{archive}"), self.target)
        finally:
            archive.unlink(missing_ok=True)

    def _copy(self, url: Url, target: Path) -> str:
        hasher = hashlib.new("sha256" if self.digest is None else self.digest.algorithm)
        size = 0
        with target.open("wb") as file:
            for piece in self._pieces(url):
                size += len(piece)
                if size > self.largest:
                    raise FileTooLarge(
                        f"{self.url} has more than {self.largest >> 20} MiB", hint="does the URL name the right file?"
                    )
                hasher.update(piece)
                file.write(piece)
                self.moved_at = time.monotonic()
        return hasher.hexdigest()

    def _pieces(self, url: Url) -> Iterator[bytes]:
        """Read the file, and turn what fsspec and its packages raise into an error of this module."""
        try:
            with _open(url) as source:
                while not self.given_up and (piece := source.read(_PIECE)):
                    yield piece
        except Exception as error:
            raise _of(self.url, error) from None  # the cause may have credentials in its text


def _run(transfer: _Transfer, done: asyncio.Future[str]) -> None:
    def tell(result: str | None, error: BaseException | None) -> None:
        if not done.done():
            if error is None:
                done.set_result(result or "")
            else:
                done.set_exception(error)

    result, failure = None, None
    try:
        result = transfer.run()
    except Exception as error:
        failure = error
    with contextlib.suppress(RuntimeError):  # the loop is closed: the fetch was given up
        done.get_loop().call_soon_threadsafe(tell, result, failure)


@contextlib.contextmanager
def _open(url: Url) -> Iterator[BinaryIO]:
    from fsspec.core import url_to_fs  # slow to import, and most jobs have no URL

    options = {scheme: _web_options() for scheme in url.schemes if scheme in _WEB}
    system, path = url_to_fs(url.text, skip_instance_cache=True, **options)
    if url.schemes[0] in _WEB:  # one request: a signed URL of S3 allows no HEAD before it
        file = system.open(path, "rb", block_size=0, size=1)
    else:
        file = system.open(path, "rb", block_size=_BLOCK)
    with file:
        yield file
    del system  # until now: an archive is closed with its file system


def _web_options() -> dict[str, Any]:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=SILENCE)
    return {"client_kwargs": {"timeout": timeout, "trust_env": True}}  # HTTPS_PROXY, NO_PROXY and ~/.netrc


# --- errors ------------------------------------------------------------------------------------------------------


def _of(url: Url, error: Exception) -> MinflinkError:
    names = {kind.__name__ for kind in type(error).__mro__}
    status = int(getattr(error, "status", 0) or 0)
    if isinstance(error, ImportError):
        return UnknownUrlScheme(f"{url} cannot be opened: the package for it is missing", hint=_install(url, error))
    if isinstance(error, ValueError) and "rotocol not known" in str(error):
        return _unknown(url)
    if isinstance(error, FileNotFoundError | NotADirectoryError | KeyError) or status in (404, 410):
        return UrlNotFound(f"there is no file {url}", hint="correct the URL; is the file published yet?")
    if isinstance(error, IsADirectoryError):
        return UrlNotFound(f"{url} is a directory", hint="name a file in it")
    why = _reason(url, error)
    if isinstance(error, PermissionError) or status in (401, 403, 407) or names & _NO_PERMISSION:
        return UrlRefused(f"{url} may not be read: {why}", hint="docs/jobs.md says where credentials are looked for")
    transient = status in (408, 425, 429) or status >= 500
    if transient or (not status and (isinstance(error, OSError | TimeoutError) or names & _TRANSIENT)):
        return UrlUnreachable(f"{url} cannot be read now: {why}", hint="try again; is the host right?")
    return UrlRefused(f"{url} cannot be read: {why}", hint="fsspec, or its package for the scheme, says so")


_NO_PERMISSION: Final = frozenset(
    {
        "NoCredentialsError",
        "AuthenticationException",
        "ClientAuthenticationError",
        "GoogleAuthError",
        "BadHostKeyException",
    }
)
_TRANSIENT: Final = frozenset({"ClientError", "SSHException", "FSTimeoutError", "ConnectionError", "HTTPClientError"})


def _reason(url: Url, error: Exception) -> str:
    """Return the error's own words, in a line, without what might be a credential."""
    if status := getattr(error, "status", 0):
        return f"{status} {without_credentials(str(getattr(error, 'message', '')))}".strip()
    words = str(error).replace(url.text, str(url)).strip().partition("\n")[0]
    return f"{type(error).__name__}: {Mask(secrets_of({}) | _secrets_in(url))(without_credentials(words))[:200]}"


def _secrets_in(url: Url) -> set[str]:
    """Return the user, the password and the query of a URL, which an error may quote alone."""
    from urllib.parse import parse_qsl, unquote, urlsplit

    found = set[str]()
    for part in url.text.split("::"):
        try:
            split = urlsplit(part)
            named = (split.username or "", split.password or "", split.query, *(v for _, v in parse_qsl(split.query)))
        except ValueError:
            continue
        found |= {form for value in named for form in (value, unquote(value)) if form}
    return found


def _unknown(url: Url) -> UnknownUrlScheme:
    from fsspec.registry import available_protocols

    known = available_protocols()
    unknown = next((scheme for scheme in url.schemes if scheme not in known), "")
    close = nearest(unknown, known)
    hint = f"did you mean {close}://?" if close else "there are: " + ", ".join(_COMMON)
    return UnknownUrlScheme(f"fsspec has no file system for {unknown}://, in {url}", hint=hint)


_COMMON: Final = ("https", "s3", "gs", "abfs", "hdfs", "sftp", "ftp", "smb", "webdav", "github")


def _install(url: Url, error: ImportError) -> str:
    """Return the command that installs what a scheme needs. fsspec says it in prose only."""
    from fsspec.registry import known_implementations

    for scheme in url.schemes:
        if scheme in _EXTRAS:
            return f"pip install 'minflinkd[{_EXTRAS[scheme]}]' (in a checkout: pip install '.[{_EXTRAS[scheme]}]')"
    missing = _missing(error)
    if not missing:
        classes = [
            str(known_implementations[scheme]["class"]) for scheme in url.schemes if scheme in known_implementations
        ]
        missing = next((name.partition(".")[0] for name in classes if not name.startswith("fsspec.")), "")
    return f"pip install {_PACKAGES.get(missing, missing)}" if missing else without_credentials(str(error))


def _missing(error: BaseException) -> str:
    """Return the top-level module that was not found. fsspec raises its own ImportError after the one that names it."""
    cause: BaseException | None = error
    name = ""
    while cause is not None:
        if isinstance(cause, ImportError) and cause.name:
            name = cause.name.partition(".")[0]
        cause = cause.__cause__ or cause.__context__
    return name
