"""What the BlobServer's requests and its cleanup share: both stores, the threads, the locks (B5, B7, B16, B17).

An upload is registered before its first byte is stored, and a blob is condemned before its file is touched. So nothing
needs a lock against the cleanup. Locks only keep two requests from restoring or publishing the same blob at once.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import ParamSpec, TypeVar

from minflinkd.blob.errors import BlobNotFound, NotLeading
from minflinkd.blob.filling import placed_or_discarded
from minflinkd.blob.ha_store import HaStore
from minflinkd.blob.incoming import Incoming
from minflinkd.blob.keys import Blob
from minflinkd.blob.lifecycle import BlobLifecycle
from minflinkd.blob.store import BlobStore
from minflinkd.blob.uploads import Uploads
from minflinkd.runtime.clock import Clock
from minflinkd.storage.interface import StorageUnavailable

THREADS = 16  # for work that waits for the disk

P = ParamSpec("P")
T = TypeVar("T")


class BlobDepot:
    """`leads`: whether this process may delete in the HA store, which other processes use as well."""

    def __init__(
        self,
        *,
        store: BlobStore,
        ha_store: HaStore | None,
        lifecycle: BlobLifecycle,
        clock: Clock,
        max_size: int | None,
        leads: Callable[[], bool],
        uploads: Uploads,
    ) -> None:
        self.store = store
        self.ha_store = ha_store
        self.lifecycle = lifecycle
        self.max_size = max_size
        self.leads = leads
        self.uploads = uploads
        self.threads = _Threads(THREADS, "blob")
        self.copied: set[Blob] = set()  # blobs with a copy in the HA store that was written or seen
        self._clock = clock
        self._locks: weakref.WeakValueDictionary[object, asyncio.Lock] = weakref.WeakValueDictionary()

    def now(self) -> float:
        return self._clock.monotonic()

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `asyncio.to_thread`, but in the depot's own threads."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, partial(call, *args, **kwargs))

    def lock(self, *what: object) -> asyncio.Lock:
        return self._locks.setdefault(what, asyncio.Lock())

    def incoming(self, blob: Blob) -> AbstractAsyncContextManager[Incoming]:
        return placed_or_discarded(self.store.incoming(*blob, max_size=self.max_size))

    def copies_of(self, blob: Blob) -> HaStore | None:
        """Return the HA store if it holds blobs of this kind (B2)."""
        return self.ha_store if blob.is_permanent else None

    def check_can_be_had(self, blob: Blob) -> None:
        """Raises BlobNotFound once the blob is being deleted."""
        if not self.lifecycle.can_be_had(blob):
            raise BlobNotFound(f"blob {blob} was deleted")

    def check_leads(self) -> None:
        """Raises NotLeading."""
        if not self.leads():
            raise NotLeading("only the leader deletes in the HA store")

    def close(self) -> None:
        """Stop the threads. Nothing is read or written any more."""
        self.threads.shutdown(wait=False)


class _Threads(ThreadPoolExecutor):
    """The depot's own threads, separate from the pool that the whole daemon shares."""

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(call, *args, **kwargs)
        except RuntimeError:
            raise StorageUnavailable("the blob server ends") from None
