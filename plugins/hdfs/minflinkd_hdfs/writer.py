"""Writes a file: a hidden temporary one next to the target, which is renamed when it is complete."""

from __future__ import annotations

import asyncio

from hdfs_native import AsyncClient, AsyncFileWriter, FileStatus

from minflinkd.storage.interface import Attempts, Entry, StorageUnavailable, Writer
from minflinkd.storage.writing import Unbroken
from minflinkd_hdfs.errors import hdfs_errors

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # seconds between two checks whether a file is complete
_CLOSING = 30.0  # seconds for a file to be complete after all of it was sent


class HdfsWriter(Writer):
    def __init__(
        self, client: AsyncClient, path: str, name: str, temporary: str, file: AsyncFileWriter, attempts: Attempts
    ) -> None:
        """`path` is the callers' name; `name` and `temporary` are the NameNode's."""
        self._client = client
        self._path = path
        self._name = name
        self._temporary = temporary
        self._file = file
        self._attempts = attempts
        self._size = 0
        self._committed: Entry | None = None
        self._aborted = False
        self._unbroken = Unbroken(path)
        self._closing: asyncio.Task[None] | None = None

    async def append(self, data: bytes | memoryview) -> None:
        if not data:
            return
        with self._unbroken.step(), hdfs_errors(self._path):
            try:
                await self._file.write(data)
            except FileNotFoundError as error:
                raise self._lost() from error
        self._size += len(data)

    async def commit(self) -> Entry:
        return await self.publish(exclusive=False)

    async def publish(self, *, exclusive: bool) -> Entry:
        """Finish the file and give it its name. With `exclusive`, raises ObjectExists if the name is taken."""
        if self._committed is None:
            if self._aborted:
                raise StorageUnavailable(f"hdfs: {self._path}: the writer is closed")
            with self._unbroken.step():
                self._committed = await self._finish(exclusive=exclusive)
        return self._committed

    async def abort(self) -> None:
        if self._committed is None:
            self._aborted = True
            with hdfs_errors(self._path):
                await self._client.delete(self._temporary)

    async def _finish(self, *, exclusive: bool) -> Entry:
        with hdfs_errors(self._path):
            try:
                await self._close()
                whole = await self._client.get_file_info(self._temporary)
            except FileNotFoundError as error:
                raise self._lost() from error
        if whole.length != self._size:
            raise StorageUnavailable(f"hdfs: {self._path}: {whole.length} of {self._size} bytes were stored")
        await self._attempts("rename", self._path, lambda: self._rename(whole, exclusive))
        return Entry(self._path, whole.length, whole.modification_time)

    async def _rename(self, whole: FileStatus, exclusive: bool) -> None:
        with hdfs_errors(self._path):
            try:
                await self._client.rename(self._temporary, self._name, overwrite=not exclusive)
            except FileNotFoundError as error:  # an earlier rename may have succeeded with its answer lost
                try:
                    found = await self._client.get_file_info(self._name)
                except FileNotFoundError:
                    raise self._lost() from error
                if (found.length, found.modification_time) != (whole.length, whole.modification_time):
                    raise self._lost() from error  # a rename keeps the time of a file

    async def _close(self) -> None:
        """Complete the file.

        The NameNode considers a file complete when a DataNode has reported its last block, some milliseconds after the
        block's end. hdfs-native asks at once and again after 0.5 s. This asks a second time sooner: once the NameNode
        reports the whole length, the first request has reached it with the last block's length, and a second call needs
        nothing that the first one still holds.
        """
        pause, asked = _FIRST_PAUSE, False
        try:
            async with asyncio.timeout(_CLOSING):
                while not await self._closes_within(pause, cancel=asked):
                    if not asked:
                        asked = (await self._client.get_file_info(self._temporary)).length == self._size
                    pause = min(1.5 * pause, _LONGEST_PAUSE)
        finally:
            await self._stop_closing()

    async def _closes_within(self, seconds: float, *, cancel: bool) -> bool:
        if self._closing is not None and cancel:
            await self._stop_closing()
        if self._closing is None:
            self._closing = asyncio.create_task(self._file.close(), name=f"close of {self._temporary}")
        await asyncio.wait({self._closing}, timeout=seconds)
        if not self._closing.done():
            return False
        closing, self._closing = self._closing, None
        try:
            closing.result()
        except RuntimeError as error:  # no longer open: an earlier call has completed it, and its answer was lost
            if not (cancel and "LeaseExpiredException" in str(error)):
                raise
        return True

    async def _stop_closing(self) -> None:
        closing, self._closing = self._closing, None
        if closing is not None:
            closing.cancel()
            await asyncio.wait({closing})
            if not closing.cancelled():
                closing.exception()  # mark as retrieved: the next call raises it again

    def _lost(self) -> StorageUnavailable:
        why = f"hdfs: {self._path}: its temporary file is gone"
        return StorageUnavailable(why, hint="write it again", settled=True)
