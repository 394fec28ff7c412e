"""What the file systems of fsspec raise: of which kind it is, in words without credentials, and what to install.

They come from many packages, which need not be installed, so their errors are recognized by names and attributes.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from minflinkd.runtime.secrets import without_credentials
from minflinkd.storage.masking import Mask, secrets_of

_LONGEST: Final = 200  # characters of a foreign message
_EXTRAS: Final = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "azure"),
    **dict.fromkeys(("hdfs", "viewfs"), "hdfs"),
}
_PACKAGES: Final = {  # modules that pip knows by another name
    "fsspec_xrootd": "fsspec-xrootd",
    "gdrive_fsspec": "gdrive-fsspec",
    "huggingface_hub": "huggingface-hub",
    "lakefs_spec": "lakefs-spec",
    "libarchive": "libarchive-c",
    "morefs": "morefs[asynclocalfs]",
    "smbclient": "smbprotocol",
    "webdav4": "webdav4[fsspec]",
}
_COMMON: Final = ("https", "s3", "gs", "abfs", "hdfs", "sftp", "ftp", "smb", "webdav", "github")
_NO_PERMISSION: Final = frozenset(
    {
        "azure.ClientAuthenticationError",
        "botocore.NoCredentialsError",
        "google.GoogleAuthError",
        "paramiko.AuthenticationException",
        "paramiko.BadHostKeyException",
    }
)
_TRANSIENT: Final = frozenset(
    {
        "aiohttp.ClientError",
        "botocore.ConnectionError",
        "botocore.HTTPClientError",
        "fsspec.FSTimeoutError",
        "paramiko.SSHException",
    }
)


class Kind(Enum):
    UNKNOWN_SCHEME = auto()
    MISSING_PACKAGE = auto()
    NOT_FOUND = auto()
    DIRECTORY = auto()
    NO_PERMISSION = auto()
    TRANSIENT = auto()
    OTHER = auto()


def kind_of(error: BaseException) -> Kind:
    names = _names(error)
    status = _status(error)
    if isinstance(error, ImportError):
        return Kind.MISSING_PACKAGE
    if isinstance(error, ValueError) and "rotocol not known" in str(error):
        return Kind.UNKNOWN_SCHEME
    if (hidden := _hidden(error)) is not None:
        return kind_of(hidden)
    if isinstance(error, FileNotFoundError | NotADirectoryError | KeyError) or status in (404, 410):
        return Kind.NOT_FOUND
    if isinstance(error, IsADirectoryError):
        return Kind.DIRECTORY
    if isinstance(error, PermissionError) or status in (401, 403, 407) or names & _NO_PERMISSION:
        return Kind.NO_PERMISSION
    if status in (408, 425, 429) or status >= 500:
        return Kind.TRANSIENT
    if not status and (isinstance(error, OSError | EOFError) or names & _TRANSIENT):
        return Kind.TRANSIENT
    return Kind.OTHER


def reason(url: str, error: BaseException) -> str:
    """Return the error's own words, in a line, without what might be a credential of the URL."""
    if (hidden := _hidden(error)) is not None:
        return reason(url, hidden)
    if status := _status(error):
        return f"{status} {without_credentials(str(getattr(error, 'message', '')))}".strip()
    words = str(error).replace(url, without_credentials(url)).strip().partition("\n")[0]
    shown = Mask(secrets_of({}) | _secrets_in(url))(without_credentials(words))[:_LONGEST]
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def nearest_scheme(scheme: str) -> str:
    """Return the hint for a scheme that fsspec does not know."""
    from fsspec.registry import available_protocols

    close = difflib.get_close_matches(scheme, available_protocols(), n=1)
    return f"did you mean {close[0]}://?" if close else f"there are: {', '.join(_COMMON)}"


def unknown_scheme(schemes: Sequence[str]) -> str:
    """Return the first of the schemes that fsspec does not know; empty if it knows all."""
    from fsspec.registry import available_protocols

    known = available_protocols()
    return next((scheme for scheme in schemes if scheme not in known), "")


def install(schemes: Sequence[str], error: ImportError) -> str:
    """Return the command that installs what a scheme needs. fsspec says it in prose only."""
    from fsspec.registry import known_implementations

    for scheme in schemes:
        if scheme in _EXTRAS:
            return f"pip install 'minflinkd[{_EXTRAS[scheme]}]' (in a checkout: pip install '.[{_EXTRAS[scheme]}]')"
    missing = _missing(error)
    if not missing:
        classes = [str(known_implementations[scheme]["class"]) for scheme in schemes if scheme in known_implementations]
        missing = next((name.partition(".")[0] for name in classes if not name.startswith("fsspec.")), "")
    return f"pip install {_PACKAGES.get(missing, missing)}" if missing else without_credentials(str(error))


def _hidden(error: BaseException) -> BaseException | None:
    """Return what fsspec's HTTP reports as a file that is not there, such as a server that does not answer."""
    cause = error.__cause__ if isinstance(error, FileNotFoundError) else None
    return cause if cause is not None and "aiohttp.ClientError" in _names(cause) else None


def _names(error: BaseException | None) -> set[str]:
    """Return the classes of an error, each with the package that it comes from."""
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}


def _missing(error: BaseException) -> str:
    """Return the top-level module that was not found. fsspec raises its own ImportError after the one that names it."""
    cause: BaseException | None = error
    name = ""
    while cause is not None:
        if isinstance(cause, ImportError) and cause.name:
            name = cause.name.partition(".")[0]
        cause = cause.__cause__ or cause.__context__
    return name


def _status(error: BaseException) -> int:
    """Return the HTTP status of an error of aiohttp's; 0 for others."""
    status = getattr(error, "status", 0)
    return status if isinstance(status, int) else 0


def _secrets_in(url: str) -> set[str]:
    """Return the user, the password and the query of a URL, which an error may quote alone."""
    found = set[str]()
    for part in url.split("::"):
        try:
            split = urlsplit(part)
            named = (split.username or "", split.password or "", split.query, *(v for _, v in parse_qsl(split.query)))
        except ValueError:
            continue
        found |= {form for value in named for form in (value, unquote(value)) if form}
    return found
