"""Paths of this backend, `bucket/key`, and what a key may be."""

from __future__ import annotations

import re

from minflinkd.storage.interface import InvalidPath

_NOT_IN_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # \r would come back as \n


def split(path: str) -> tuple[str, str]:
    """(bucket, key) of an object. Raises InvalidPath."""
    bucket, _, key = path.partition("/")
    if not bucket or "\0" in path or not is_plain(key):
        raise InvalidPath(f"s3: {path[:200]!r} names no object", hint="bucket/key, without //, . and ..")
    return bucket, key


def split_directory(path: str) -> tuple[str, str]:
    """(bucket, what the keys below begin with). Raises InvalidPath."""
    trimmed = path.rstrip("/")
    if trimmed and "/" not in trimmed and "\0" not in trimmed:
        return trimmed, ""
    bucket, key = split(trimmed)
    return bucket, f"{key}/"


def split_listed(path: str) -> tuple[str, str]:
    """(bucket, key) of what a listing may have given, so with any key; a bucket's is empty. Raises InvalidPath."""
    bucket, _, key = path.partition("/")
    if not bucket or "\0" in path:
        raise InvalidPath(f"s3: {path[:200]!r} names no object", hint="bucket/key")
    return bucket, key.rstrip("/")


def is_plain(key: str) -> bool:
    """Whether no program on the way may take it for another one, as a path of a URL."""
    return all(part not in ("", ".", "..") for part in key.split("/"))


def fits_xml(key: str) -> bool:
    """Whether a request that carries its keys in XML can name it."""
    return _NOT_IN_XML.search(key) is None
