"""Azure Blob Storage as a storage backend: `abfs://container/blob`, in accounts with and without directories."""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec
from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.storage.blob import BlobBlock, BlobProperties

from minflinkd.storage.interface import (
    Capabilities,
    Entry,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from minflinkd.storage.masking import Mask
from minflinkd.storage.multipart import MultipartStorage, Part
from minflinkd.storage.parallel import for_each
from minflinkd_azure.accounts import Accounts, Place, is_plain, listed, split
from minflinkd_azure.errors import azure_errors, code_of
from minflinkd_azure.options import AzureOptions

# For each request. The SDK's own retries begin with a pause of 15 s and know no deadline.
# The caller limits how long a request may take: storage.abfs.request-timeout.
_ONCE: dict[str, Any] = {"retry_total": 0, "connection_timeout": 20, "read_timeout": None}
_PIECE = 4 << 20  # bytes of a stream per request
_SLICE = 1 << 20  # bytes that a reader gets at a time
_PAGE = 1000  # entries of a listing per request
_DELETES_AT_ONCE = 16
_TAKEN = ("BlobAlreadyExists", "ConditionNotMet", "LeaseIdMissing", "PathAlreadyExists")
_MARK = "minflinkd"  # metadata that identifies the write
_BLOCK_OF_COPY = 64 << 20  # bytes; larger blobs are copied in blocks
_MOST_BLOCKS = 50_000
_COPIES_AT_ONCE = 4  # blocks of one blob


class _Piece(NamedTuple):
    data: bytes
    total: int  # bytes of the whole blob
    version: str


class AzureStorage(MultipartStorage):
    """Blobs up to `part_size` are stored with one request, larger ones in blocks that a block list turns into a blob.

    Blocks are named after their upload, so a block that is sent again replaces itself.
    """

    scheme = ("abfs", "abfss", "az")
    capabilities = Capabilities(exclusive_create=True, server_side_copy=True, consistent_list=True)
    options_type = AzureOptions

    def __init__(self, options: msgspec.Struct | None = None) -> None:
        """Raises InvalidStorageOption."""
        given = options if isinstance(options, AzureOptions) else AzureOptions()
        given = given.completed()
        self.part_size = given.part_size
        self._mask = Mask(given.secrets())
        self._accounts = Accounts(given)

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Read with many requests, since the SDK keeps the whole answer to each in memory."""
        if length == 0:
            await self.stat(path)
            return
        version = ""
        while length is None or length > 0:
            piece = await self._read(path, offset, _PIECE if length is None else min(_PIECE, length), version)
            if piece is None:
                return
            for begin in range(0, len(piece.data), _SLICE):
                yield piece.data[begin : begin + _SLICE]
            offset, version = offset + len(piece.data), piece.version
            length = piece.total - offset if length is None else min(length - len(piece.data), piece.total - offset)

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        """Sort here, with all entries in memory: the service sorts names as UTF-16, or by directory."""
        place, token, found = split(prefix.rstrip("/")), "", list[Entry]()
        while True:
            page, token = await self.attempts("list", prefix, partial(self._page, prefix, place, token))
            found += page
            if not token:
                break
        for entry in sorted(found, key=lambda entry: entry.path):
            yield entry

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        async def one(path: str) -> None:
            await self.attempts("delete", path, lambda: self._delete(path))

        await for_each((path for path in paths if listed(path).name), one, limit=_DELETES_AT_ONCE)

    async def stat(self, path: str) -> Entry:
        return _entry(path, await self._properties(path))

    async def copy(self, source: str, target: str) -> Entry:
        """Copy with requests that return when the bytes are stored.

        The service's other kind of copy shows an empty target until it ends, and goes on even if nobody waits for it.
        """
        found = await self.attempts("stat", source, lambda: self._properties(source))
        if found.size <= _BLOCK_OF_COPY:
            return await self.attempts("copy", source, lambda: self._copy_whole(source, found, target))
        size = max(_BLOCK_OF_COPY, -(-found.size // _MOST_BLOCKS))
        upload = await self.start_parts(target)

        async def copy(number: int) -> Part:
            offset = (number - 1) * size
            length = min(size, found.size - offset)
            block = _block(upload, number)
            step = partial(self._copy_block, source, found, target, block, offset, length)
            await self.attempts("copy", source, step)
            return Part(number, length, block)

        parts = await for_each(range(1, -(-found.size // size) + 1), copy, limit=_COPIES_AT_ONCE)
        return await self.attempts("finish", target, lambda: self.finish_parts(target, upload, parts))

    async def aclose(self) -> None:
        await self._accounts.aclose()

    async def put(self, path: str, data: bytes, *, exclusive: bool = False) -> Entry:
        mark = {_MARK: secrets.token_hex(8)} if exclusive else None
        with azure_errors(path, self._mask):
            try:
                blob = self._accounts.blob(path)
                answer = await blob.upload_blob(data, length=len(data), overwrite=not exclusive, metadata=mark, **_ONCE)
            except HttpResponseError as error:
                if not exclusive or code_of(error) not in _TAKEN:
                    raise
            else:
                return _written(path, len(data), answer)
        # aiohttp resends a PUT if its connection breaks, so the existing blob may be from this one.
        with suppress(ObjectNotFound):  # a directory, or deleted meanwhile
            found = await self._properties(path)
            if found.metadata == mark:
                return _entry(path, found)
        raise ObjectExists(f"abfs: {path}: exists")

    async def start_parts(self, path: str) -> str:
        """Make up an id; no request is needed."""
        return secrets.token_hex(12)

    async def put_part(self, path: str, upload: str, number: int, offset: int, data: bytes, *, last: bool) -> Part:
        block = _block(upload, number)
        with azure_errors(path, self._mask):
            await self._accounts.blob(path).stage_block(block, data, length=len(data), **_ONCE)
        return Part(number, len(data), block)

    async def finish_parts(self, path: str, upload: str, parts: Sequence[Part]) -> Entry:
        with azure_errors(path, self._mask):
            blocks = [BlobBlock(part.tag) for part in parts]
            answer = await self._accounts.blob(path).commit_block_list(blocks, **_ONCE)
        return _written(path, sum(part.size for part in parts), answer)

    async def drop_parts(self, path: str, upload: str) -> None:
        """Do nothing: blocks without a list are no blob, and the service deletes them after a week."""

    async def _read(self, path: str, offset: int, length: int, version: str = "") -> _Piece | None:
        """Read a piece; None at the blob's end. Raises StorageUnavailable if the blob is no longer that version."""
        same: dict[str, Any] = {"etag": version, "match_condition": MatchConditions.IfNotModified} if version else {}
        with azure_errors(path, self._mask):
            try:
                stream = await self._accounts.blob(path).download_blob(
                    offset, length, decompress=False, **same, **_ONCE
                )
                data = await stream.readall()
            except HttpResponseError as error:
                if error.status_code == 416:
                    await self._properties(path)  # an empty blob may be a directory
                    return None
                if version and error.status_code == 412:
                    why = f"abfs: {path}: was replaced while it was read"
                    raise StorageUnavailable(why, hint="read it again", settled=True) from None
                raise
            found = stream.properties
            if _is_directory(found.name, found.metadata):
                raise ObjectNotFound(f"abfs: {path}: is a directory")
            total = (found.content_range or "").rpartition("/")[2]
            if not total.isdigit():
                raise StorageError(f"abfs: {path}: the server does not say how long the blob is")
            return _Piece(data, int(total), found.etag)

    async def _properties(self, path: str) -> BlobProperties:
        with azure_errors(path, self._mask):
            found = await self._accounts.blob(path).get_blob_properties(**_ONCE)
        if _is_directory(found.name, found.metadata):
            raise ObjectNotFound(f"abfs: {path}: is a directory")
        return found

    async def _page(self, prefix: str, place: Place, token: str) -> tuple[Sequence[Entry], str]:
        """Return entries and the token of the next page; "": there is none."""
        with azure_errors(prefix, self._mask):
            pages = (
                self._accounts.container(place)
                .list_blobs(
                    name_starts_with=f"{place.name}/" if place.name else None,
                    include=["metadata"],  # distinguishes directories from blobs
                    results_per_page=_PAGE,
                    **_ONCE,
                )
                .by_page(token or None)
            )
            blobs = [blob async for blob in await anext(pages)]
        entries = [_entry(f"{place.root}/{b.name}", b) for b in blobs if not _is_directory(b.name, b.metadata)]
        return entries, str(getattr(pages, "continuation_token", None) or "")

    async def _delete(self, path: str) -> None:
        place, same = listed(path), dict[str, Any]()
        with azure_errors(path, self._mask):
            if not is_plain(place):
                # A listing gave this name, but the service might take it for another one. The version prevents that.
                version = await self._version(place)
                if not version:
                    return
                same = {"etag": version, "match_condition": MatchConditions.IfNotModified}
            try:
                blob = self._accounts.container(place).get_blob_client(place.name)
                await blob.delete_blob(delete_snapshots="include", **same, **_ONCE)
            except ResourceNotFoundError as error:
                if code_of(error) == "ContainerNotFound":
                    raise
            except HttpResponseError as error:
                if code_of(error) != "DirectoryIsNotEmpty":
                    raise

    async def _version(self, place: Place) -> str:
        """Return the version of the blob with exactly that name; empty if there is none."""
        async for blob in self._accounts.container(place).list_blobs(name_starts_with=place.name, **_ONCE):
            return blob.etag if blob.name == place.name else ""
        return ""

    async def _copy_whole(self, source: str, found: BlobProperties, target: str) -> Entry:
        with azure_errors(source, self._mask), _one_content(source):
            url, access = await self._accounts.source(source)
            blob = self._accounts.blob(target)
            same: dict[str, Any] = {
                "source_etag": found.etag,
                "source_match_condition": MatchConditions.IfNotModified,
            }
            answer = await blob.start_copy_from_url(url, requires_sync=True, **access, **same, **_ONCE)
        return _written(target, found.size, answer)

    async def _copy_block(
        self, source: str, found: BlobProperties, target: str, block: str, offset: int, length: int
    ) -> None:
        with azure_errors(source, self._mask), _one_content(source):
            url, access = await self._accounts.source(source)
            same: dict[str, Any] = {"headers": {"x-ms-source-if-match": found.etag}}  # the SDK lacks this argument here
            await self._accounts.blob(target).stage_block_from_url(
                block, url, offset, length, **access, **same, **_ONCE
            )


@contextmanager
def _one_content(source: str) -> Iterator[None]:
    """Around a copy with the condition that its source is unchanged."""
    try:
        yield
    except HttpResponseError as error:
        if error.status_code != 412:
            raise
        why = f"abfs: {source}: was replaced while it was copied"
        raise StorageUnavailable(why, hint="copy it again", settled=True) from None


def _block(upload: str, number: int) -> str:
    """Return a block's name, which has the same length for all blocks of a blob."""
    return base64.b64encode(f"{upload}-{number:06d}".encode()).decode()


def _entry(path: str, found: BlobProperties) -> Entry:
    return Entry(path, found.size, _milliseconds(found.last_modified), found.etag.strip('"'))


def _written(path: str, size: int, answer: Mapping[str, Any]) -> Entry:
    return Entry(path, size, _milliseconds(answer["last_modified"]), str(answer["etag"]).strip('"'))


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _is_directory(name: str, metadata: Mapping[str, str] | None) -> bool:
    """Whether it is a directory, of an account with directories, or as Hadoop marks it in others."""
    folded = {key.lower(): value.lower() for key, value in (metadata or {}).items()}
    return name.endswith("/") or folded.get("hdi_isfolder") == "true"
