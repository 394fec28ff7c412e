"""Whether the disks that a task writes to have room for another micro-batch (A14).

While no checkpoints complete, staged output is not published, and files that a checkpoint would replace are not
deleted. A task that kept running would fill the disk, and would fail together with every other task that writes there.
So the task waits instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from minflinkd.jobgraph.model import Vertex
from minflinkd.taskmanager.session.sinks.files import local_path

SHARE = 0.1  # of a file system: on a small one, this much free space is enough


class Usage(Protocol):
    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...


class DiskSpace:
    """`least`: bytes that must be free in each directory, which need not exist yet. 0: never wait."""

    def __init__(
        self, directories: Iterable[Path], least: int, *, usage: Callable[[Path], Usage] = shutil.disk_usage
    ) -> None:
        self._directories = tuple(directories) if least else ()
        self._least = least
        self._usage = usage

    def lacking(self) -> str:
        """Return which directory has too little free space, as text for people; empty if all have enough."""
        for directory in self._directories:
            try:
                found = self._usage(_existing(directory))
            except OSError:  # the write itself will report what is wrong
                continue
            least = min(self._least, int(SHARE * found.total))
            if found.free < least:
                return f"{found.free / 2**20:.0f} MiB are free in {directory}, {least / 2**20:.0f} MiB must stay free"
        return ""


def written_to(attempt_directory: str, sinks: Iterable[Vertex]) -> list[Path]:
    """Return the directories on local disks that grow with each micro-batch of a task."""
    roots = [local_path(vertex.sink.path) for vertex in sinks if vertex.sink is not None and vertex.sink.path]
    return [Path(attempt_directory), *(Path(root) for root in roots if root is not None)]


def _existing(directory: Path) -> Path:
    return next(path for path in (directory, *directory.parents) if path.exists())
