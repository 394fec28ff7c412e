"""Names of objects, and their descriptions by the server."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote

import msgspec

from minflinkd.storage.interface import Entry, InvalidPath

LONGEST = 1024  # bytes of a name
FIELDS = "name,size,updated,generation,metadata"
MARK = "minflinkd-upload"  # metadata that identifies the upload that made the object


class Object(msgspec.Struct):
    name: str
    updated: datetime
    size: str = "0"  # 64-bit numbers are strings in Google's JSON
    generation: str = ""
    metadata: dict[str, str] = {}

    def entry(self, path: str) -> Entry:
        return Entry(path, int(self.size), round(self.updated.timestamp() * 1000), self.generation)


def split(path: str) -> tuple[str, str]:
    """Return bucket and name. Raises InvalidPath."""
    bucket, name = listed(path)
    if any(part in (".", "..") for part in (bucket, *name.split("/"))) or any(char in name for char in "\0\r\n"):
        raise InvalidPath(f"gs: {path[:200]!r} cannot be the name of an object")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidPath(f"gs: {path[:200]!r} is not Unicode") from None
    if size > LONGEST:
        raise InvalidPath(f"gs: {path[:200]!r}...: a name has at most {LONGEST} bytes", hint="shorten the name")
    return bucket, name


def listed(path: str) -> tuple[str, str]:
    """Return bucket and name of a path from a listing, which may be any name. Raises InvalidPath."""
    bucket, _, name = path.partition("/")
    if not bucket or not name:
        raise InvalidPath(f"gs: {path[:200]!r} names no object", hint="gs://bucket/name")
    return bucket, name


def bucket_url(bucket: str) -> str:
    """Return the URL at which a bucket's objects are listed, and below /upload created."""
    return f"/storage/v1/b/{quote(bucket, safe='')}/o"


def object_url(path: str) -> str:
    """Raises InvalidPath."""
    return _url(*split(path))


def listed_url(path: str) -> str:
    """Raises InvalidPath."""
    return _url(*listed(path))


def _url(bucket: str, name: str) -> str:
    return f"{bucket_url(bucket)}/{quote(name, safe='')}"
