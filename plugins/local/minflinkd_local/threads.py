"""Threads for calls that may hang in the kernel, as on a network mount whose server is away.

Each mount has threads of its own, and none is of the event loop's: what hangs holds up nothing else, nor the end of the
process. Calls that change one path keep their order, also when a caller has given up: what comes back late must not
undo what came after it.
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
_IDLE = 10.0  # seconds after which a thread without work ends
_MOUNTS_KNOWN_FOR = 5.0  # seconds
_MOUNTINFO = "/proc/self/mountinfo"


class Threads:
    """A few daemon threads with one queue. `concurrent.futures` has none that let a process end while one hangs."""

    def __init__(self, name: str, most: int = MOST) -> None:
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0  # or about to be

    def submit(self, act: Callable[[], T]) -> Future[T]:
        """Raises StorageUnavailable where the system gives no thread, and there is none yet."""
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
    """Calls about paths, in the threads of the mount that each path lies on, by its text alone."""

    def __init__(self) -> None:
        self._threads: dict[str, Threads] = {}
        self._mounts: Sequence[str] = ()
        self._known_until = 0.0
        self._last: dict[str, asyncio.Future[None]] = {}  # by path: the end of the last call that changes it

    async def run(self, path: str, act: Callable[[], T]) -> T:
        """A call that changes nothing, or only what nobody else knows."""
        return await asyncio.wrap_future(self._of(path).submit(act))

    async def change(self, paths: Iterable[str], act: Callable[[], T]) -> T:
        """A call that begins when all earlier ones about one of the paths have ended, whoever waits for them."""
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
    """Longest first. Asks the kernel for its list, and so no mount for anything."""
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
    """`ended` is done when the thread is, even if the call was given up."""
    loop = ended.get_loop()

    def tell(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_end, ended)

    call.add_done_callback(tell)


def _after(earlier: Iterable[asyncio.Future[None]], ended: asyncio.Future[None]) -> None:
    """A call that was given up before it began ends when those before it have."""
    left = [one for one in earlier if not one.done()]
    if not left:
        _end(ended)
        return
    left[0].add_done_callback(lambda _: _after(left[1:], ended))


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
