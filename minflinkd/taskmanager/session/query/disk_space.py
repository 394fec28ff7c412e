"""Whether the disks that a task writes to have room for another micro-batch (A14).

While nobody completes checkpoints, what sinks stage is not published, and nothing that a checkpoint would replace is
deleted. A task that goes on would fill the disk, and fail with every other task that writes there. So it waits instead.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from minflinkd.jobgraph.model import Vertex
from minflinkd.taskmanager.session.sinks.files import local_path

SHARE = 0.1  # of a file system: on one that is small, no more than this is left free


class Usage(Protocol):
    @property
    def total(self) -> int: ...
    @property
    def free(self) -> int: ...


class DiskSpace:
    """`least`: bytes that must be free in each directory, which need not exist yet. 0: whatever is free is enough."""

    def __init__(
        self, directories: Iterable[Path], least: int, *, usage: Callable[[Path], Usage] = shutil.disk_usage
    ) -> None:
        self._directories = tuple(directories) if least else ()
        self._least = least
        self._usage = usage

    def lacking(self) -> str:
        """Return where too little is free, in words; empty if there is enough everywhere."""
        for directory in self._directories:
            try:
                found = self._usage(_existing(directory))
            except OSError:  # writing there says what is wrong
                continue
            least = min(self._least, int(SHARE * found.total))
            if found.free < least:
                return f"{found.free / 2**20:.0f} MiB free in {directory}, where {least / 2**20:.0f} MiB must stay free"
        return ""


def written_to(attempt_directory: str, sinks: Iterable[Vertex]) -> list[Path]:
    """Return the directories on local disks that grow with each micro-batch of a task."""
    roots = [local_path(vertex.sink.path) for vertex in sinks if vertex.sink is not None and vertex.sink.path]
    return [Path(attempt_directory), *(Path(root) for root in roots if root is not None)]


def _existing(directory: Path) -> Path:
    return next(path for path in (directory, *directory.parents) if path.exists())
