"""Resumable uploads: one object, sent in parts in order. It appears with the last part.

An upload is identified by its URL, which needs no other credential and so is never shown. The server forgets it after
a week.
"""

from __future__ import annotations

import re
import secrets

import msgspec

from minflinkd.storage.interface import ObjectNotFound, StorageUnavailable
from minflinkd_gcs.connection import Connection, decoded
from minflinkd_gcs.objects import FIELDS, MARK, Object, bucket_url, object_url, split

_STORED = re.compile(r"bytes=0-(\d+)")
_MORE = 308  # Google's "Resume Incomplete"
_ENDED = (404, 410, 499)  # unknown, expired, cancelled


class Upload:
    """After a lost answer, asks how much the server has before it sends anything else."""

    def __init__(self, connection: Connection, path: str, url: str, mark: str) -> None:
        self._connection = connection
        self._path = path
        self._url = url
        self._mark = mark
        self._in_doubt = False  # whether an answer is missing
        self.last: tuple[int, bytes] = (0, b"")  # offset and bytes of the last part

    @classmethod
    async def start(cls, connection: Connection, path: str) -> Upload:
        bucket, name = split(path)
        mark = secrets.token_hex(8)
        described = msgspec.json.encode({"name": name, "metadata": {MARK: mark}})
        async with connection.request(
            "POST",
            "/upload" + bucket_url(bucket),
            path,
            params={"uploadType": "resumable", "fields": FIELDS},
            headers={"Content-Type": "application/json", "X-Upload-Content-Type": "application/octet-stream"},
            data=described,
        ) as response:
            url = response.headers.get("Location")
        if url is None:
            raise StorageUnavailable(f"gs: {path}: the server began no upload")
        return cls(connection, path, url, mark)

    async def send(self, offset: int, data: bytes, *, last: bool) -> Object | None:
        """Store these bytes; with the last ones, return the object. Safe to repeat."""
        end = offset + len(data)
        total = str(end) if last else "*"
        answer = await self._put(f"*/{total}", b"") if self._in_doubt else offset
        self._in_doubt = True
        while isinstance(answer, int) and (answer < end or last):
            begin = answer
            if begin < offset:
                raise self._lost()
            body = memoryview(data)[begin - offset :]
            answer = await self._put(f"{begin}-{end - 1}/{total}" if body else f"*/{total}", body)
            if answer == begin:
                raise StorageUnavailable(f"gs: {self._path}: the server stored nothing of what was sent")
        if isinstance(answer, Object) and (not last or int(answer.size) != end):
            await self._remove(answer)  # fake-gcs-server completes the object when asked how much it has
            raise self._lost()
        self._in_doubt = False
        return answer if isinstance(answer, Object) else None

    async def drop(self) -> None:
        """Drop the upload. Idempotent."""
        async with self._connection.request("DELETE", self._url, self._path, also=_ENDED):
            return

    async def _put(self, content_range: str, body: bytes | memoryview) -> Object | int:
        """Send bytes. Return the finished object, or how many bytes the server has."""
        async with self._connection.request(
            "PUT",
            self._url,
            self._path,
            headers={"Content-Range": f"bytes {content_range}"},
            data=body,
            also=(_MORE, *_ENDED),
        ) as response:
            if response.status == _MORE:
                stored = _STORED.fullmatch(response.headers.get("Range", ""))
                return int(stored[1]) + 1 if stored else 0
            if response.status not in _ENDED:
                return decoded(self._path, await response.read(), Object)
        return await self._made()

    async def _made(self) -> Object:
        """Return the object, if the server has forgotten the upload because it was finished."""
        try:
            found = await self._connection.ask(
                "GET", object_url(self._path), self._path, Object, params={"fields": FIELDS}
            )
        except ObjectNotFound:
            raise self._lost() from None
        if found.metadata.get(MARK) != self._mark:
            raise self._lost()
        return found

    async def _remove(self, made: Object) -> None:
        condition = {"ifGenerationMatch": made.generation}
        url = object_url(self._path)
        async with self._connection.request("DELETE", url, self._path, params=condition, also=(404, 412)):
            return

    def _lost(self) -> StorageUnavailable:
        why = f"gs: {self._path}: the server no longer has the upload"
        return StorageUnavailable(why, hint="write it again", settled=True)
