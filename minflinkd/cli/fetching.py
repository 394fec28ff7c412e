"""Fetches one file from any URL that fsspec opens, and verifies it.

fsspec's file systems block, and some cannot be interrupted. So each fetch has a thread of its own. If it brings nothing
for a while it is given up: the thread ends with its next piece, or with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from minflinkd.jobgraph.places import Digest, Place, Url
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.storage.fsspec_errors import Kind, install, kind_of, nearest_scheme, reason, unknown_scheme
from minflinkd.storage.own_thread import in_own_thread

SILENCE: Final = 60.0  # seconds without a byte until a fetch is given up
CONNECT: Final = 20.0  # seconds until a web server must have taken the connection
_WEB: Final = frozenset({"http", "https"})
_PIECE: Final = 1 << 20  # bytes
_BLOCK: Final = 4 << 20  # bytes that a file system which reads ranges reads at a time


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
    done = in_own_thread(transfer.run, f"fetch {place.file}")
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
        done.cancel()  # nothing if it is done
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


def _of(url: Url, error: Exception) -> MinflinkError:
    kind, why = kind_of(error), reason(url.text, error)
    if isinstance(error, ImportError):
        hint = install(url.schemes, error)
        return UnknownUrlScheme(f"{url} cannot be opened: the package for it is missing", hint=hint)
    if kind is Kind.UNKNOWN_SCHEME:
        unknown = unknown_scheme(url.schemes)
        return UnknownUrlScheme(f"fsspec has no file system for {unknown}://, in {url}", hint=nearest_scheme(unknown))
    if kind is Kind.NOT_FOUND:
        return UrlNotFound(f"there is no file {url}", hint="correct the URL; is the file published yet?")
    if kind is Kind.DIRECTORY:
        return UrlNotFound(f"{url} is a directory", hint="name a file in it")
    if kind is Kind.NO_PERMISSION:
        return UrlRefused(f"{url} may not be read: {why}", hint="docs/jobs.md says where credentials are looked for")
    if kind is Kind.TRANSIENT:
        return UrlUnreachable(f"{url} cannot be read now: {why}", hint="try again; is the host right?")
    return UrlRefused(f"{url} cannot be read: {why}", hint="fsspec, or its package for the scheme, says so")
