"""Google Cloud Storage as a storage backend: `gs://bucket/name`."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import msgspec

from minflinkd.storage.interface import Capabilities, Entry, ObjectNotFound, StorageError
from minflinkd.storage.multipart import MultipartStorage, Part
from minflinkd.storage.parallel import for_each
from minflinkd_gcs.connection import Connection, decoded
from minflinkd_gcs.objects import FIELDS, Object, bucket_url, listed_url, object_url, split
from minflinkd_gcs.options import GcsOptions
from minflinkd_gcs.uploads import Upload

_PAGE = 1000  # entries; the server's limit
_DELETES_AT_ONCE = 16


class _Page(msgspec.Struct, rename="camel"):
    items: list[Object] = []
    next_page_token: str = ""


class _Rewrite(msgspec.Struct, rename="camel"):
    """The progress of a copy."""

    done: bool
    rewrite_token: str = ""
    resource: Object | None = None


class GcsStorage(MultipartStorage):
    """Objects up to `part_size` are stored with one request, larger ones with a resumable upload."""

    scheme = ("gs",)
    capabilities = Capabilities(exclusive_create=True, server_side_copy=True, consistent_list=True)
    options_type = GcsOptions
    parts_at_once = 1  # an upload needs its parts in order

    def __init__(self, options: msgspec.Struct | None = None) -> None:
        """Raises InvalidStorageOption."""
        given = options if isinstance(options, GcsOptions) else GcsOptions()
        given.check()
        self.part_size = given.part_size
        self._connection = Connection(given)
        self._uploads: dict[str, Upload] = {}
        self._buckets = set[str]()  # known to exist

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        if length == 0:
            await self.stat(path)
            return
        headers = {"Accept-Encoding": "gzip"}  # keeps the server from decompressing objects that are stored compressed
        if offset or length is not None:
            headers["Range"] = f"bytes={offset}-" + ("" if length is None else str(offset + length - 1))
        url, params = "/download" + object_url(path), {"alt": "media"}
        async with (
            self._in_bucket(path),
            self._connection.request("GET", url, path, params=params, headers=headers, also=(416,)) as response,
        ):
            if response.status == 416:  # the range begins at the object's end or after it
                return
            if "Range" in headers and response.status != 206:
                raise StorageError(f"gs: {path}: the server sends no ranges")
            async for data in response.content.iter_any():
                yield data

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        bucket, _, directory = prefix.rstrip("/").partition("/")
        params = {"maxResults": str(_PAGE), "fields": f"items({FIELDS}),nextPageToken"}
        if directory:
            params["prefix"] = f"{directory}/"
        while True:
            page = await self.attempts("list", prefix, partial(self._page, prefix, bucket, dict(params)))
            for item in page.items:
                if not item.name.endswith("/"):  # other programs' markers for directories
                    yield item.entry(f"{bucket}/{item.name}")
            if not page.next_page_token:
                return
            params["pageToken"] = page.next_page_token

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        async def one(path: str) -> None:
            await self.attempts("delete", path, lambda: self._delete(path))

        await for_each((path for path in paths if "/" in path.rstrip("/")), one, limit=_DELETES_AT_ONCE)

    async def stat(self, path: str) -> Entry:
        async with self._in_bucket(path):
            found = await self._connection.ask("GET", object_url(path), path, Object, params={"fields": FIELDS})
        return found.entry(path)

    async def copy(self, source: str, target: str) -> Entry:
        url = f"{object_url(source)}/rewriteTo{object_url(target).removeprefix('/storage/v1')}"
        copied = _Rewrite(done=False)
        while not copied.done:
            params = {"rewriteToken": copied.rewrite_token} if copied.rewrite_token else {}

            async def step(params: dict[str, str] = params) -> _Rewrite:
                async with self._in_bucket(source), self._in_bucket(target):
                    return await self._connection.ask("POST", url, source, _Rewrite, params=params)

            copied = await self.attempts("copy", source, step)
        if copied.resource is None:
            return await self.stat(target)
        return copied.resource.entry(target)

    async def aclose(self) -> None:
        await self._connection.aclose()

    async def put(self, path: str, data: bytes, *, exclusive: bool = False) -> Entry:
        bucket, name = split(path)
        boundary = secrets.token_hex(16)
        described = msgspec.json.encode({"name": name})
        body = b"".join(
            (
                f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".encode(),
                *(described, f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n".encode()),
                *(data, f"\r\n--{boundary}--\r\n".encode()),
            )
        )
        params = {"uploadType": "multipart", "fields": FIELDS, **({"ifGenerationMatch": "0"} if exclusive else {})}
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        url = "/upload" + bucket_url(bucket)
        async with (
            self._in_bucket(path),
            self._connection.request("POST", url, path, params=params, headers=headers, data=body) as response,
        ):
            return decoded(path, await response.read(), Object).entry(path)

    async def start_parts(self, path: str) -> str:
        upload = secrets.token_hex(8)
        async with self._in_bucket(path):
            self._uploads[upload] = await Upload.start(self._connection, path)
        return upload

    async def put_part(self, path: str, upload: str, number: int, offset: int, data: bytes, *, last: bool) -> Part:
        """Send a part. The last one waits for `finish_parts`, since it completes the object."""
        if last:
            self._uploads[upload].last = (offset, data)
        else:
            await self._uploads[upload].send(offset, data, last=False)
        return Part(number, len(data))

    async def finish_parts(self, path: str, upload: str, parts: Sequence[Part]) -> Entry:
        offset, data = self._uploads[upload].last
        made = await self._uploads[upload].send(offset, data, last=True)
        assert made is not None, "the last part makes the object"
        del self._uploads[upload]
        return made.entry(path)

    async def drop_parts(self, path: str, upload: str) -> None:
        if upload in self._uploads:
            self._uploads[upload].last = (0, b"")  # nobody can finish it any more, even if this fails
            await self._uploads[upload].drop()
            del self._uploads[upload]

    async def _delete(self, path: str) -> None:
        with suppress(ObjectNotFound):
            async with self._in_bucket(path), self._connection.request("DELETE", listed_url(path), path):
                return

    async def _page(self, prefix: str, bucket: str, params: dict[str, str]) -> _Page:
        try:
            return await self._connection.ask("GET", bucket_url(bucket), prefix, _Page, params=params)
        except ObjectNotFound as error:
            raise _no_bucket(prefix) from error

    @asynccontextmanager
    async def _in_bucket(self, path: str) -> AsyncIterator[None]:
        """Around a request for an object: "not found" may mean the bucket, so check once whether that exists."""
        try:
            yield
        except ObjectNotFound:
            bucket = path.partition("/")[0]
            if bucket not in self._buckets:
                await self._page(path, bucket, {"maxResults": "1", "fields": "nextPageToken"})
                self._buckets.add(bucket)
            raise


def _no_bucket(path: str) -> StorageError:
    """Return the error for a missing bucket. Not ObjectNotFound: a wrong bucket must not look like an empty one."""
    return StorageError(f"gs: {path}: there is no such bucket", hint="create the bucket, or correct the URI")
