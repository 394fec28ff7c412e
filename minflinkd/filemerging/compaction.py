"""Decides which physical files to rewrite, so that few bytes are stored that nobody refers to (F6). Pure.

A file lives as long as one of its segments. A decision is carried out during the upload of a checkpoint. The
TaskManager has every state file on its own disk, so what a checkpoint needs of a worn file is appended to that
checkpoint's own files. The worn file is deleted with the last checkpoint that refers to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minflinkd.filemerging.segments import HEADER
from minflinkd.rpc.snapshot import StateHandle

DEFAULT_MAX_AMPLIFICATION = 1.3
MAX_FILES = 64  # for the state of one job on one TaskManager, not counting large files
REWRITTEN_PER_NEW = 4  # bytes that one checkpoint may rewrite for each new one; a full file, if that is more
REWRITE_TIME = 5.0  # seconds by which rewriting may prolong any checkpoint


@dataclass(frozen=True)
class FileUse:
    """A physical file: bytes `stored`, header included, and bytes of it that are `referenced`."""

    stored: int
    referenced: int

    @property
    def dead(self) -> int:
        """Bytes that are freed once the rest is in another file."""
        return max(0, self.stored - self.referenced - len(HEADER))


@dataclass(frozen=True)
class SpaceUse:
    """Bytes in physical files, and how many of them checkpoints refer to."""

    stored: int = 0
    referenced: int = 0

    @property
    def amplification(self) -> float:
        """Bytes stored per byte referenced; 1.0 if there is nothing."""
        return self.stored / self.referenced if self.referenced else 1.0


@dataclass(frozen=True, kw_only=True)
class CompactionLimits:
    """`max_amplification`: bytes stored / bytes referenced. `max_file_size`: of physical files, in bytes."""

    max_file_size: int
    max_amplification: float = DEFAULT_MAX_AMPLIFICATION
    max_files: int = MAX_FILES


def file_uses(handles: Iterable[StateHandle], sizes: Mapping[str, int]) -> dict[str, FileUse]:
    """Return the files that hold the segments `handles`, by name. A file of unknown size ends with the last of them."""
    referenced: dict[str, int] = {}
    ends: dict[str, int] = {}
    for handle in set(handles):
        referenced[handle.file] = referenced.get(handle.file, 0) + handle.length
        ends[handle.file] = max(ends.get(handle.file, 0), handle.offset + handle.length)
    return {name: FileUse(sizes.get(name, ends[name]), length) for name, length in referenced.items()}


def space_use(files: Mapping[str, FileUse]) -> SpaceUse:
    return SpaceUse(sum(use.stored for use in files.values()), sum(use.referenced for use in files.values()))


def files_to_rewrite(files: Mapping[str, FileUse], new: int, limits: CompactionLimits) -> frozenset[str]:
    """Return the `files` of earlier checkpoints that the next one, with `new` bytes, rewrites.

    After it, at most `max_amplification` is stored, with the fewest bytes rewritten: the files with the largest dead
    part go first, and only as many as needed. Small files beyond `max_files` are combined. One checkpoint rewrites at
    most a full file, or REWRITTEN_PER_NEW bytes per new byte if that is more. It always rewrites the most worthwhile
    file. The rest waits for the next checkpoint.
    """
    budget = max(limits.max_file_size, REWRITTEN_PER_NEW * new)
    worn = _worn(files, new, limits.max_amplification, budget)
    spent = sum(files[name].referenced for name in worn)
    return frozenset(worn) | _small(files, worn, limits, budget - spent)


def time_to_rewrite(elapsed: float, timeout: float) -> float:
    """Return the seconds for rewriting after an upload of new state that took `elapsed`.

    The checkpoint is given up after `timeout`. If the storage is too slow for this, compaction takes several
    checkpoints. It never makes one fail.
    """
    return min(max(REWRITE_TIME, 2 * elapsed), timeout / 4)


def _worn(files: Mapping[str, FileUse], new: int, max_amplification: float, budget: int) -> set[str]:
    now = space_use(files)
    excess = now.stored + new - max_amplification * (now.referenced + new)
    chosen: set[str] = set()
    spent = 0
    for name in sorted((n for n, use in files.items() if use.dead), key=lambda n: (_price(files[n]), n)):
        use = files[name]
        if excess <= 0:
            break
        if not chosen or spent + use.referenced <= budget:
            chosen.add(name)
            spent += use.referenced
            excess -= use.dead
    for name in sorted(chosen, key=lambda n: (-files[n].referenced, n)):  # the last may have made others unnecessary
        if excess + files[name].dead <= 0:
            chosen.remove(name)
            excess += files[name].dead
    return chosen


def _price(use: FileUse) -> float:
    """Bytes rewritten for each byte that this frees."""
    return use.referenced / use.dead


def _small(files: Mapping[str, FileUse], gone: set[str], limits: CompactionLimits, budget: int) -> frozenset[str]:
    """Combine half of the small files at a time, so that a byte is combined a few times in its life, not always."""
    left = sorted((files[name].referenced, name) for name in files.keys() - gone)
    if len(left) < limits.max_files:
        return frozenset()
    chosen: set[str] = set()
    for referenced, name in left[: len(left) - limits.max_files // 2]:
        if referenced > limits.max_file_size // 4 or referenced > budget:  # nor is any later one smaller
            break
        chosen.add(name)
        budget -= referenced
    return frozenset(chosen)
