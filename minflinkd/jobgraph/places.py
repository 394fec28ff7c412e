"""Where the files are that a user names: job files and artifacts, each a path of this machine or a URL.

    flights.py                                              beside the job file
    https://host/flights.whl#sha256=9f86d081...             at a URL, with the hash that its content must have
    zip://flights.py::https://host/release.zip              in an archive at a URL

Pure: `cli.fetching` opens URLs.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote, unquote

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.secrets import without_credentials

HASHES: Final = {"sha256": 64, "sha384": 96, "sha512": 128}  # name -> hex digits; pip calls these strong

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HASH = re.compile(r"([a-z0-9]+)=([0-9A-Fa-f]*)")
_PATH_WITH_HASH = re.compile(rf"(.+)#((?:{'|'.join(HASHES)})=[0-9A-Fa-f]*)", re.DOTALL)
_LOCAL = frozenset({"file", "local"})
_HTTP = frozenset({"http", "https"})
_WITHOUT_HOST = frozenset({"file", "local", "memory", "zip", "tar", "libarchive"})
_CHAIN = "::"  # of a file in an archive and the place of the archive, in fsspec's notation


class InvalidUrl(MinflinkError):
    """A text that names no file that may be opened."""

    code = "invalid-url"
    consequence = Consequence.REFUSED


@dataclass(frozen=True)
class Digest:
    algorithm: str
    value: str  # hexadecimal, in lower case


@dataclass(frozen=True, repr=False)
class Url:
    """A URL without its fragment. As text it has no credentials, so that it may be shown and logged."""

    text: str

    @property
    def schemes(self) -> tuple[str, ...]:
        """Of a chain: from the innermost file to the place of the outermost archive."""
        parts = (part.partition("://") for part in self.text.split(_CHAIN))
        return tuple(scheme.lower() if separator else "" for scheme, separator, _ in parts)

    @property
    def is_local(self) -> bool:
        """Whether it names a file of this machine."""
        return self.schemes[-1] in _LOCAL

    @property
    def name(self) -> str:
        """The file's name; empty if the URL names a directory."""
        scheme, path, *_ = _parts(self.text)
        name = path.rpartition("/")[2]
        return unquote(name) if scheme in _HTTP else name

    def beside(self, path: str) -> Url:
        """Return the URL of a file whose path is relative to this one. Raises InvalidUrl."""
        scheme, here, rest = _parts(self.text)
        host, root = ("", "") if scheme in _WITHOUT_HOST else here.partition("/")[:2]
        directory = (here if "/" in here or not host else f"{here}/").rpartition("/")[0]
        relative = quote(path, safe="/") if scheme in _HTTP else path
        target = posixpath.normpath(posixpath.join(directory, relative))
        if path.startswith("/"):
            raise InvalidUrl(
                f"a job file at a URL names {path}, a file of this machine",
                hint="a path relative to the job file, or a URL",
            )
        if target.startswith("..") or (host and not target.startswith(f"{host}{root or '/'}")):
            raise InvalidUrl(f"{path} leads out of {self}", hint="a path within it, or a URL")
        return Url(f"{scheme}://{target}{rest}")

    def __str__(self) -> str:
        return without_credentials(re.sub(r"\s", "%20", self.text))

    def __repr__(self) -> str:
        return f"Url({str(self)!r})"


@dataclass(frozen=True)
class Place:
    """A file, and the hash that its content must have, if one is given."""

    file: Path | Url
    digest: Digest | None = None

    def __str__(self) -> str:
        return str(self.file)


def is_url(text: str) -> bool:
    return _SCHEME.match(text) is not None or (_CHAIN in text and _SCHEME.search(text) is not None)


def file_name(text: str) -> str:
    """Return the name of the file that a path or a URL names."""
    return Url(text.partition("#")[0]).name if is_url(text) else PurePosixPath(_split(text)[0]).name


def place_of(text: str, base: Path | Url = Path()) -> Place:
    """Return the place that a path or a URL names. `base`: the directory, or the job file at a URL, that it is in.

    Raises InvalidUrl.
    """
    body, fragment = _split(text)
    digest = None if fragment is None else _digest(fragment, body)
    if not is_url(body):
        return Place(base.beside(body) if isinstance(base, Url) else base / body, digest)
    url = Url(_with_archive(body, base))
    if isinstance(base, Url) and url.is_local and not base.is_local:
        raise InvalidUrl(
            f"a job file at a URL names {url}, a file of this machine", hint="a path relative to the job file, or a URL"
        )
    return Place(url, digest)


def _split(text: str) -> tuple[str, str | None]:
    """Return (path or URL, fragment). Names of local files may have a `#`, so only a hash is a fragment of theirs."""
    if is_url(text):
        body, separator, fragment = text.partition("#")
        return body, fragment if separator else None
    match = _PATH_WITH_HASH.fullmatch(text)
    return (text, None) if match is None else (match[1], match[2])


def _with_archive(url: str, base: Path | Url) -> str:
    """Return the URL with the whole place of its archive, which may be a path: `zip://x.py::release.zip`."""
    inner, chain, archive = url.rpartition(_CHAIN)
    if not chain or _SCHEME.match(archive):
        return url
    where = base.beside(archive).text if isinstance(base, Url) else f"file://{(base / archive).absolute()}"
    return f"{inner}{chain}{where}"


def _digest(fragment: str, body: str) -> Digest:
    match = _HASH.fullmatch(fragment)
    place = without_credentials(body)
    if match is None or match[1] not in HASHES:
        raise InvalidUrl(
            f"what follows # in {place}#{fragment[:80]} is no hash that is known here",
            hint=f"#sha256=<64 hex digits>; also {', '.join(name for name in HASHES if name != 'sha256')}",
        )
    algorithm, value = match[1], match[2].lower()
    if len(value) != HASHES[algorithm]:
        raise InvalidUrl(
            f"the {algorithm} of {place} has {len(value)} hex digits instead of {HASHES[algorithm]}",
            hint=f"`{algorithm}sum FILE` prints it",
        )
    return Digest(algorithm, value)


def _parts(url: str) -> tuple[str, str, str]:
    """Return (scheme, path with the host, rest of the chain). The query of HTTP is left out."""
    first, chain, rest = url.partition(_CHAIN)
    scheme, _, path = first.partition("://")
    scheme = scheme.lower()
    return scheme, path.partition("?")[0] if scheme in _HTTP else path, chain + rest
