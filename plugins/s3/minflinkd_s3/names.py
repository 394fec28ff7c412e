"""Paths of this backend, `bucket/key`, and valid keys."""

from __future__ import annotations

import re

from minflinkd.storage.interface import InvalidPath

_NOT_IN_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # \r would be read back as \n


def split(path: str) -> tuple[str, str]:
    """Return (bucket, key) of an object. Raises InvalidPath."""
    bucket, _, key = path.partition("/")
    if not bucket or "\0" in path or not is_plain(key):
        raise InvalidPath(f"s3: {path[:200]!r} names no object", hint="bucket/key, without //, . and ..")
    return bucket, key


def split_directory(path: str) -> tuple[str, str]:
    """Return (bucket, prefix of the keys below). Raises InvalidPath."""
    trimmed = path.rstrip("/")
    if trimmed and "/" not in trimmed and "\0" not in trimmed:
        return trimmed, ""
    bucket, key = split(trimmed)
    return bucket, f"{key}/"


def split_listed(path: str) -> tuple[str, str]:
    """Return (bucket, key) of a path from a listing, with any key; empty for a bucket. Raises InvalidPath."""
    bucket, _, key = path.partition("/")
    if not bucket or "\0" in path:
        raise InvalidPath(f"s3: {path[:200]!r} names no object", hint="bucket/key")
    return bucket, key.rstrip("/")


def is_plain(key: str) -> bool:
    """Whether a key, as the path of a URL, cannot be taken for another key."""
    return all(part not in ("", ".", "..") for part in key.split("/"))


def fits_xml(key: str) -> bool:
    """Whether a request with its keys in XML can contain this key."""
    return _NOT_IN_XML.search(key) is None
