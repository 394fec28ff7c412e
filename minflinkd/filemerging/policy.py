"""Which state files of a checkpoint come to lie in one physical file: as many as fit, or each in its own (F9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minflinkd.filemerging.compaction import CompactionLimits
from minflinkd.filemerging.sharing import DEFAULT_MAX_FILE_AGE, SharedFiles
from minflinkd.filemerging.writer import PhysicalFileWriter
from minflinkd.storage.location import Location


@dataclass(frozen=True, kw_only=True)
class FileMerging:
    """`max_file_age`: seconds for which a task's files stay open for others that reach the checkpoint later.

    Not `enabled`: a state file shares its physical file with no other, nor a task with another, and since all of it is
    dead at once nothing is ever rewritten.
    """

    limits: CompactionLimits
    max_file_age: float = DEFAULT_MAX_FILE_AGE
    enabled: bool = True

    def begin(self, root: Location, name: Callable[[int], str], *, compact: bool = True) -> SharedFiles:
        """The files of one checkpoint in `root`, where the n-th has the name `name(n)`.

        `compact`: write anew what lies in worn files.
        """
        if not self.enabled:
            return SharedFiles(PhysicalFileWriter(root, name, max_file_size=0), None, alone=True)
        writer = PhysicalFileWriter(root, name, max_file_size=self.limits.max_file_size)
        return SharedFiles(writer, self.limits if compact else None, max_age=self.max_file_age)
