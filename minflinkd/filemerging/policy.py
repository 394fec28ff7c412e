"""Which state files of a checkpoint share one physical file: as many as fit, or none (F9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minflinkd.filemerging.compaction import CompactionLimits
from minflinkd.filemerging.sharing import DEFAULT_MAX_FILE_AGE, SharedFiles
from minflinkd.filemerging.writer import PhysicalFileWriter
from minflinkd.storage.location import Location


@dataclass(frozen=True, kw_only=True)
class FileMerging:
    """`max_file_age`: seconds that a task's files stay open for others that reach the checkpoint later.

    If not `enabled`, no state file shares its physical file with another, and no task shares one with another task.
    Then all of a file is dead at once, so nothing is ever rewritten.
    """

    limits: CompactionLimits
    max_file_age: float = DEFAULT_MAX_FILE_AGE
    enabled: bool = True

    def begin(self, root: Location, name: Callable[[int], str], *, compact: bool = True) -> SharedFiles:
        """Begin the files of one checkpoint in `root`. The n-th file has the name `name(n)`.

        `compact`: rewrite what lies in worn files.
        """
        if not self.enabled:
            return SharedFiles(PhysicalFileWriter(root, name, max_file_size=0), None, alone=True)
        writer = PhysicalFileWriter(root, name, max_file_size=self.limits.max_file_size)
        return SharedFiles(writer, self.limits if compact else None, max_age=self.max_file_age)
