"""Paths from the registry: `<authority>/<names>`. The authority is `host:port`, a nameservice, or empty."""

from __future__ import annotations

import posixpath

from minflinkd.storage.interface import InvalidPath


def split(path: str) -> tuple[str, str]:
    """Return (authority, absolute path). Raises InvalidPath for `..`, and for names that HDFS cannot store."""
    authority, _, rest = path.partition("/")
    names = rest.split("/")
    if not path or "\0" in path or ".." in names or "." in names:
        raise InvalidPath(f"hdfs: {path[:200]!r} is not of the form host:port/path or nameservice/path, without ..")
    if ":" in rest:
        raise InvalidPath(f"hdfs: {path[:200]!r}: HDFS has no names with a colon", hint="write %3A, as Spark does")
    return authority, posixpath.normpath("/" + rest.strip("/"))


def join(authority: str, name: str) -> str:
    return authority + name
