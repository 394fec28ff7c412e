"""Which physical files are worth to be written anew, so that few bytes are stored that nobody refers to (F6). Pure.

A file lives as long as one of its segments. What is decided here is carried out within the upload of a checkpoint: the
TaskManager has every file of state on its own disk, so what a checkpoint needs of a worn file is appended to that
checkpoint's own files. The worn file goes with the last checkpoint that refers to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from minflinkd.filemerging.segments import HEADER
from minflinkd.rpc.snapshot import StateHandle

DEFAULT_MAX_AMPLIFICATION = 1.3
MAX_FILES = 64  # that the state of one job on one TaskManager lies in, beside those that are large
REWRITTEN_PER_NEW = 4  # bytes that one checkpoint rewrites at most for each new one, where a full file is less
REWRITE_TIME = 5.0  # seconds that any checkpoint may take longer for it


@dataclass(frozen=True)
class FileUse:
    """A physical file: bytes `stored`, header included, and bytes of it that are `referenced`."""

    stored: int
    referenced: int

    @property
    def dead(self) -> int:
        """Bytes that are gone once the rest lies in another file."""
        return max(0, self.stored - self.referenced - len(HEADER))


@dataclass(frozen=True)
class SpaceUse:
    """Bytes in physical files, and those of them that checkpoints refer to."""

    stored: int = 0
    referenced: int = 0

    @property
    def amplification(self) -> float:
        """1.0 where there is nothing."""
        return self.stored / self.referenced if self.referenced else 1.0


@dataclass(frozen=True, kw_only=True)
class CompactionLimits:
    """`max_amplification`: bytes stored / bytes referenced. `max_file_size`: of physical files, in bytes."""

    max_file_size: int
    max_amplification: float = DEFAULT_MAX_AMPLIFICATION
    max_files: int = MAX_FILES


def file_uses(handles: Iterable[StateHandle], sizes: Mapping[str, int]) -> dict[str, FileUse]:
    """By name, the files in which the segments `handles` lie. A file of unknown size ends with the last of them."""
    referenced: dict[str, int] = {}
    ends: dict[str, int] = {}
    for handle in set(handles):
        referenced[handle.file] = referenced.get(handle.file, 0) + handle.length
        ends[handle.file] = max(ends.get(handle.file, 0), handle.offset + handle.length)
    return {name: FileUse(sizes.get(name, ends[name]), length) for name, length in referenced.items()}


def space_use(files: Mapping[str, FileUse]) -> SpaceUse:
    return SpaceUse(sum(use.stored for use in files.values()), sum(use.referenced for use in files.values()))


def files_to_rewrite(files: Mapping[str, FileUse], new: int, limits: CompactionLimits) -> frozenset[str]:
    """Those of the `files` of earlier checkpoints whose segments the next one, with `new` bytes, writes anew.

    Behind it no more than `max_amplification` is stored, for the fewest bytes rewritten: the files go first of which
    the most is dead, and only as many as are needed. Small files beyond `max_files` are put together. One checkpoint
    rewrites no more than a full file, or REWRITTEN_PER_NEW bytes for each new one where that is more, but always the
    file that is worth it most; what is left waits for the next.
    """
    budget = max(limits.max_file_size, REWRITTEN_PER_NEW * new)
    worn = _worn(files, new, limits.max_amplification, budget)
    spent = sum(files[name].referenced for name in worn)
    return frozenset(worn) | _small(files, worn, limits, budget - spent)


def time_to_rewrite(elapsed: float, timeout: float) -> float:
    """Seconds, behind an upload of new state that took `elapsed`, for a checkpoint that is given up after `timeout`.

    On a storage so slow that this is not enough, compaction takes several checkpoints, and never costs one.
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
    for name in sorted(chosen, key=lambda n: (-files[n].referenced, n)):  # the last one may have made others needless
        if excess + files[name].dead <= 0:
            chosen.remove(name)
            excess += files[name].dead
    return chosen


def _price(use: FileUse) -> float:
    """Bytes rewritten for each byte that this frees."""
    return use.referenced / use.dead


def _small(files: Mapping[str, FileUse], gone: set[str], limits: CompactionLimits, budget: int) -> frozenset[str]:
    """Half of them at a time, so that a byte is put together with others a few times in its life, not always."""
    left = sorted((files[name].referenced, name) for name in files.keys() - gone)
    if len(left) < limits.max_files:
        return frozenset()
    chosen: set[str] = set()
    for referenced, name in left[: len(left) - limits.max_files // 2]:
        if referenced > limits.max_file_size // 4 or referenced > budget:  # nor is any of those that follow
            break
        chosen.add(name)
        budget -= referenced
    return frozenset(chosen)
