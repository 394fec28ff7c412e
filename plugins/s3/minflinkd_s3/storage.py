"""S3 as a storage backend: conditional writes, multipart uploads, listings as streams of pages.

There are only keys: no directories, and no markers for them.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import groupby
from typing import Any

from minflinkd.storage.interface import (
    Capabilities,
    Entry,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from minflinkd.storage.multipart import MultipartStorage, Part
from minflinkd.storage.parallel import for_each
from minflinkd_s3.errors import RangeBeyondEnd, UploadGone, WritersMet, of_answer, s3_errors
from minflinkd_s3.names import fits_xml, is_plain, split, split_directory, split_listed
from minflinkd_s3.options import S3Options
from minflinkd_s3.session import S3Session

Answer = dict[str, Any]  # an answer of the SDK, which has no types

_PIECE = 1 << 20  # bytes of a stream
_PAGE = 1000  # entries of a listing
_BATCH = 1000  # keys per deletion request
_BATCHES_AT_ONCE = 4
_MOST_PARTS = 10_000
_MARK = "minflinkd-upload"  # metadata that identifies the upload or exclusive create that made an object


class S3Storage(MultipartStorage):
    scheme = ("s3", "s3a")
    capabilities = Capabilities(exclusive_create=True, server_side_copy=True, consistent_list=True)
    options_type = S3Options

    def __init__(self, options: S3Options | None = None) -> None:
        self._options = options or S3Options()
        self._session = S3Session(self._options)
        self._buckets = set[str]()  # known to exist
        self.part_size = self._options.part_size
        self.parts_at_once = self._options.parts_at_once

    # --- reading ---

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        if length == 0:
            await self.stat(path)
            return
        last = "" if length is None else offset + length - 1
        ranged = {"Range": f"bytes={offset}-{last}"} if offset or length is not None else {}
        try:
            answer = await self._request("get_object", path, **ranged)
        except RangeBeyondEnd:
            return
        async with answer["Body"] as body:
            while True:
                with s3_errors(path):
                    data: bytes = await body.read(_PIECE)
                if not data:
                    return
                yield data

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        async with aclosing(self._pages(prefix)) as pages:
            if self._options.sort_listings:
                for entry in sorted([entry async for page in pages for entry in page], key=lambda entry: entry.path):
                    yield entry
                return
            last = ""
            async for page in pages:
                for entry in page:
                    if entry.path < last:
                        raise StorageError(
                            f"s3: {prefix}: the store lists {entry.path} after {last}",
                            hint="storage.s3.sort-listings: true, for a store that lists by directory",
                        )
                    last = entry.path
                    yield entry

    async def stat(self, path: str) -> Entry:
        found = await self._head(path)
        return _entry(path, found["ContentLength"], found)

    # --- writing ---

    async def put(self, path: str, data: bytes, *, exclusive: bool = False) -> Entry:
        if exclusive:
            return await self._put_first(path, data)
        return _written(path, len(data), await self._request("put_object", path, Body=data))

    async def start_parts(self, path: str) -> str:
        mark = secrets.token_hex(8)
        answer = await self._request("create_multipart_upload", path, Metadata={_MARK: mark})
        return f"{mark} {answer['UploadId']}"

    async def put_part(self, path: str, upload: str, number: int, offset: int, data: bytes, *, last: bool) -> Part:
        if number > _MOST_PARTS:
            raise StorageError(f"s3: {path}: more than {_MOST_PARTS} parts", hint="raise storage.s3.part-size")
        answer = await self._request("upload_part", path, UploadId=_id(upload), PartNumber=number, Body=data)
        return Part(number, len(data), answer["ETag"])

    async def finish_parts(self, path: str, upload: str, parts: Sequence[Part]) -> Entry:
        listed = [{"PartNumber": part.number, "ETag": part.tag} for part in parts]
        try:
            answer = await self._request(
                "complete_multipart_upload", path, UploadId=_id(upload), MultipartUpload={"Parts": listed}
            )
        except (UploadGone, ObjectNotFound):
            return await self._finished(path, upload)
        return _written(path, sum(part.size for part in parts), answer)

    async def drop_parts(self, path: str, upload: str) -> None:
        try:
            await self._request("abort_multipart_upload", path, UploadId=_id(upload))
        except (UploadGone, ObjectNotFound):
            return

    # --- other ---

    async def copy(self, source: str, target: str) -> Entry:
        found = await self.attempts("stat", source, lambda: self.stat(source))
        if found.size > self._options.copy_part_size:
            return await self._copy_in_parts(found, target)
        return await self.attempts("copy", target, lambda: self._copy_whole(found, target))

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        in_xml, alone = list[tuple[str, str]](), list[tuple[str, str]]()
        for path in dict.fromkeys(paths):
            bucket, key = split_listed(path)
            if key:  # a bucket is a directory and is kept
                many = fits_xml(key) and (len(paths) > 1 or not is_plain(key))
                (in_xml if many else alone).append((bucket, key))
        batches = list[tuple[str, list[str]]]()
        for bucket, group in groupby(sorted(in_xml), lambda at: at[0]):
            keys = [key for _, key in group]
            batches += ((bucket, keys[start : start + _BATCH]) for start in range(0, len(keys), _BATCH))
        await for_each(alone, lambda at: self._try_to_delete(*at), limit=_BATCHES_AT_ONCE)
        await for_each(batches, lambda batch: self._try_to_delete(*batch), limit=_BATCHES_AT_ONCE)

    async def aclose(self) -> None:
        await self._session.aclose()

    # --- requests ---

    async def _request(self, operation: str, path: str, **parameters: object) -> Answer:
        """Make one request for an object. Raises the kinds of StorageError."""
        bucket, key = split(path)
        return await self._call(operation, path, Bucket=bucket, Key=key, **parameters)

    async def _call(self, operation: str, path: str, **parameters: object) -> Answer:
        with s3_errors(path):
            client = await self._session.client()
            answer: Answer = await getattr(client, operation)(**parameters)
            return answer

    async def _pages(self, prefix: str) -> AsyncGenerator[Sequence[Entry], None]:
        """Yield every object below a directory, in pages, in the store's order."""
        bucket, below = split_directory(prefix)
        token: str | None = None
        while True:
            page = await self.attempts("list", prefix, partial(self._page, prefix, bucket, below, token))
            yield [
                _entry(f"{bucket}/{found['Key']}", found["Size"], found)
                for found in page.get("Contents", ())
                if not found["Key"].endswith("/")  # another program's marker for a directory
            ]
            token = page.get("NextContinuationToken")
            if not (token and page.get("IsTruncated")):
                return

    async def _page(self, prefix: str, bucket: str, below: str, token: str | None) -> Answer:
        at = {"ContinuationToken": token} if token else {}
        return await self._call("list_objects_v2", prefix, Bucket=bucket, Prefix=below, MaxKeys=_PAGE, **at)

    async def _try_to_delete(self, bucket: str, what: str | Sequence[str]) -> None:
        """Delete one key or one batch, with its own time limits, so that many keys are as likely to succeed as few."""
        if isinstance(what, str):
            step = partial(self._call, "delete_object", f"{bucket}/{what}", Bucket=bucket, Key=what)
            await self.attempts("delete", f"{bucket}/{what}", step)
        else:
            await self.attempts("delete", f"{bucket}/{what[0]}", partial(self._delete_batch, bucket, what))

    async def _delete_batch(self, bucket: str, keys: Sequence[str]) -> None:
        """Delete a batch of keys. Raises the error of the first key that was refused."""
        first = f"{bucket}/{keys[0]}"
        doomed = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = await self._call("delete_objects", first, Bucket=bucket, Delete=doomed)
        for refused in answer.get("Errors", ()):
            error = of_answer(f"{bucket}/{refused.get('Key', '')}", {"Error": refused})
            if not isinstance(error, ObjectNotFound):
                raise error

    async def _put_first(self, path: str, data: bytes) -> Entry:
        """Create an object if it does not exist, with a mark that identifies this call.

        The HTTP client itself repeats a PUT if a reused connection has ended. The second PUT is then refused because of
        the first, and the mark shows that.
        """
        mark = secrets.token_hex(8)
        try:
            answer = await self._request("put_object", path, Body=data, IfNoneMatch="*", Metadata={_MARK: mark})
        except (ObjectExists, WritersMet) as error:
            found = await self._found(path)
            if _mark_of(found) == mark:
                return _entry(path, len(data), found)
            if found and isinstance(error, WritersMet):  # the other write has won
                raise ObjectExists(f"s3: {path} exists") from None
            raise
        return _written(path, len(data), answer)

    async def _found(self, path: str) -> Answer:
        """Return S3's description of an object; empty if there is none."""
        try:
            return await self._head(path)
        except ObjectNotFound:
            return {}

    async def _head(self, path: str) -> Answer:
        """Make a HEAD request. Its answer does not say what is missing, so check once whether the bucket exists."""
        try:
            return await self._request("head_object", path)
        except ObjectNotFound:
            bucket, _ = split(path)
            if bucket not in self._buckets:
                await self._call("list_objects_v2", path, Bucket=bucket, MaxKeys=1)  # raises if it does not exist
                self._buckets.add(bucket)
            raise

    async def _finished(self, path: str, upload: str) -> Entry:
        """Return the object, if an earlier request with a lost answer has made it. Raises StorageUnavailable."""
        found = await self._found(path)
        if _mark_of(found) != upload.partition(" ")[0]:
            raise UploadGone(
                f"s3: {path}: the upload is gone, and did not make the object",
                hint="write it again; was it ended by a lifecycle rule, or the object replaced by another writer?",
            )
        return _entry(path, found["ContentLength"], found)

    async def _copy_whole(self, source: Entry, target: str) -> Entry:
        bucket, key = split(source.path)
        answer = await self._request("copy_object", target, CopySource={"Bucket": bucket, "Key": key})
        return _entry(target, source.size, answer["CopyObjectResult"])

    async def _copy_in_parts(self, source: Entry, target: str) -> Entry:
        bucket, key = split(source.path)
        size = max(self._options.copy_part_size, -(-source.size // _MOST_PARTS))
        upload = await self.attempts("start", target, lambda: self.start_parts(target))

        async def copy(number: int) -> Part:
            start, end = (number - 1) * size, min(number * size, source.size)
            answer = await self._request(
                *("upload_part_copy", target),
                UploadId=_id(upload),
                PartNumber=number,
                CopySource={"Bucket": bucket, "Key": key},
                CopySourceIfMatch=source.version,  # so that all parts come from the same object
                CopySourceRange=f"bytes={start}-{end - 1}",
            )
            return Part(number, end - start, answer["CopyPartResult"]["ETag"])

        try:
            parts = await for_each(
                range(1, -(-source.size // size) + 1),
                lambda number: self.attempts("copy", target, partial(copy, number)),
                limit=self.parts_at_once,
            )
            return await self.attempts("finish", target, lambda: self.finish_parts(target, upload, parts))
        except BaseException as error:
            try:
                await self.attempts("drop", target, lambda: self.drop_parts(target, upload))
            except StorageError as left:
                error.add_note(f"the unfinished upload is left: {left.message}")
            if isinstance(error, ObjectExists):  # the precondition CopySourceIfMatch failed
                raise StorageUnavailable(f"s3: {source.path} was replaced while it was copied") from error
            raise


def _entry(path: str, size: int, found: Answer) -> Entry:
    return Entry(path, size, _milliseconds(found["LastModified"]), found.get("ETag", ""))


def _written(path: str, size: int, answer: Answer) -> Entry:
    """Return the entry of a new object. S3 does not return its time, so the time of the answer is used."""
    said = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date", "")
    try:
        time = parsedate_to_datetime(said)
    except ValueError:
        time = datetime.now(UTC)
    return Entry(path, size, _milliseconds(time), answer["ETag"])


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _mark_of(found: Answer) -> str | None:
    mark: str | None = found.get("Metadata", {}).get(_MARK)
    return mark


def _id(upload: str) -> str:
    """Return S3's own upload id."""
    return upload.partition(" ")[2]
