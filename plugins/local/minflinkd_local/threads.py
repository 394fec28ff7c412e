"""Threads for calls that may hang in the kernel, e.g. on a network mount without its server.

Each mount has its own threads, separate from the event loop's, so that a call that hangs delays nothing else, not even
the end of the process. Calls that change a path keep their order even if a caller has given up: a late call must not
undo a later one.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from minflinkd.storage.interface import StorageUnavailable

T = TypeVar("T")

MOST = 16  # threads of one mount
_IDLE = 10.0  # seconds until an idle thread ends
_MOUNTS_KNOWN_FOR = 5.0  # seconds
_MOUNTINFO = "/proc/self/mountinfo"


class Threads:
    """A few daemon threads with one queue. Threads of `concurrent.futures` that hang keep the process from ending."""

    def __init__(self, name: str, most: int = MOST) -> None:
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0  # includes those about to start work

    def submit(self, act: Callable[[], T]) -> Future[T]:
        """Run `act` in a thread. Raises StorageUnavailable if there is no thread and none can be started."""
        future: Future[T] = Future()
        with self._lock:
            if self._busy >= self._threads and self._threads < self._most:
                self._add_thread()
            self._busy += 1
            self._work.put((future, act))
        return future

    def _add_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError as error:
            if not self._threads:
                raise StorageUnavailable(f"file: no thread for {self._name}: {error}") from error
        else:
            self._threads += 1

    def _run(self) -> None:
        while True:
            try:
                future, act = self._work.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if not self._work.empty():
                        continue
                    self._threads -= 1
                    return
            _carry_out(future, act)
            del future, act
            with self._lock:
                self._busy -= 1


class MountThreads:
    """Runs calls about paths in the threads of each path's mount, which is found from the path's text alone."""

    def __init__(self) -> None:
        self._threads: dict[str, Threads] = {}
        self._mounts: Sequence[str] = ()
        self._known_until = 0.0
        self._last: dict[str, asyncio.Future[None]] = {}  # by path: done when the last call that changes it has ended

    async def run(self, path: str, act: Callable[[], T]) -> T:
        """Run a call that changes nothing, or only files that nobody else knows."""
        return await asyncio.wrap_future(self._of(path).submit(act))

    async def change(self, paths: Iterable[str], act: Callable[[], T]) -> T:
        """Run a call after all earlier changes of any of the paths have ended, even those given up by their callers."""
        paths = list(paths)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        earlier = {self._last[path] for path in paths if path in self._last}
        for path in paths:
            self._last[path] = ended
        ended.add_done_callback(lambda _: self._forget(paths, ended))
        try:
            if earlier:
                await asyncio.wait(earlier)
        except asyncio.CancelledError:
            _after(earlier, ended)
            raise
        try:
            call = self._of(paths[0] if paths else "/").submit(act)
        except BaseException:
            _end(ended)
            raise
        answer = asyncio.wrap_future(call)
        _follow(call, ended)
        return await answer

    def mount(self, path: str) -> str:
        now = time.monotonic()
        if now >= self._known_until:
            self._mounts, self._known_until = mount_points(), now + _MOUNTS_KNOWN_FOR
        return mount_of(path, self._mounts)

    def _of(self, path: str) -> Threads:
        mount = self.mount(path)
        if mount not in self._threads:
            self._threads[mount] = Threads(f"storage {mount}")
        return self._threads[mount]

    def _forget(self, paths: list[str], ended: asyncio.Future[None]) -> None:
        for path in paths:
            if self._last.get(path) is ended:
                del self._last[path]


def mount_points() -> list[str]:
    """Return the mount points, longest first. Reads the kernel's list, so no mount is accessed."""
    try:
        with open(_MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
            found = {_unescaped(line.split(" ", 5)[4]) for line in file}
    except OSError:  # not Linux
        return ["/"]
    return sorted(found, key=len, reverse=True)


def mount_of(path: str, mounts: Sequence[str]) -> str:
    return next((mount for mount in mounts if path == mount or path.startswith(mount.rstrip("/") + "/")), "/")


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _carry_out(future: Future[Any], act: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        answer = act()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(answer)


def _follow(call: Future[Any], ended: asyncio.Future[None]) -> None:
    """Complete `ended` when the thread is done, even if the call was given up."""
    loop = ended.get_loop()

    def tell(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_end, ended)

    call.add_done_callback(tell)


def _after(earlier: Iterable[asyncio.Future[None]], ended: asyncio.Future[None]) -> None:
    """Complete `ended`, for a call given up before it began, when the earlier calls have ended."""
    left = [one for one in earlier if not one.done()]
    if not left:
        _end(ended)
        return
    left[0].add_done_callback(lambda _: _after(left[1:], ended))


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
