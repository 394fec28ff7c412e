"""Paths as the registry gives them: `<authority>/<names>`; the authority is `host:port`, a nameservice, or empty."""

from __future__ import annotations

import posixpath
import secrets

from minflinkd.storage.interface import InvalidPath

TEMPORARY = ".minflinkd-tmp"  # suffix; such names are hidden, and no object


def split(path: str) -> tuple[str, str]:
    """(authority, absolute path on it). Raises InvalidPath for what HDFS cannot hold, or what climbs."""
    authority, _, rest = path.partition("/")
    names = rest.split("/")
    if not path or "\0" in path or ".." in names or "." in names:
        raise InvalidPath(f"hdfs: {path[:200]!r} is not of the form host:port/path or nameservice/path, without ..")
    if ":" in rest:
        raise InvalidPath(f"hdfs: {path[:200]!r}: HDFS has no names with a colon", hint="write %3A, as Spark does")
    return authority, posixpath.normpath("/" + rest.strip("/"))


def join(authority: str, name: str) -> str:
    return authority + name


def temporary_beside(name: str) -> str:
    return posixpath.join(posixpath.dirname(name), f".{secrets.token_hex(12)}{TEMPORARY}")


def is_temporary(name: str) -> bool:
    return name.endswith(TEMPORARY)
