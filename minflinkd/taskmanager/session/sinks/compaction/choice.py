"""Which files of a table are joined. Pure.

A table that gets a small file every few seconds and is compacted every few minutes must not be written anew each time.
So a file is joined only with others that together are about as large, as the size-tiered compaction of log-structured
merge trees does. Each row is then written again some `log(target / size of a new file)` times, however often that is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

_FULL: Final = 0.75  # of the target: such a file is left alone
_ROOM: Final = 1.25  # of the target: the largest that files are joined to
_LARGER: Final = 2  # times as large as all smaller ones together: such a file waits until there are more


@dataclass(frozen=True)
class SizedFile:
    """A data file. `partition`: files of different partitions are never joined. `file`: the library's."""

    size: int
    partition: Hashable = ()
    file: Any = None


def groups(files: Iterable[SizedFile], target: int) -> list[tuple[SizedFile, ...]]:
    """Return what is joined, each group to one file of at most about `target` bytes. A group has at least two files."""
    small = defaultdict[Hashable, list[SizedFile]](list)
    for file in files:
        if file.size < _FULL * target:
            small[file.partition].append(file)
    found = [group for alike in small.values() for group in _grouped(alike, target)]
    return [group for group in found if len(group) > 1]


def _grouped(files: Iterable[SizedFile], target: int) -> Iterator[tuple[SizedFile, ...]]:
    group: list[SizedFile] = []
    total = 0
    for file in sorted(files, key=attrgetter("size")):
        if group and (file.size > _LARGER * total or total + file.size > _ROOM * target):
            yield tuple(group)
            group, total = [], 0
        group.append(file)
        total += file.size
    yield tuple(group)
