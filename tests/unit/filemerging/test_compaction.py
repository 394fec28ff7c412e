"""Which files are worth rewriting: for one checkpoint, and over the life of a job."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.filemerging.compaction import (
    REWRITE_TIME,
    REWRITTEN_PER_NEW,
    CompactionLimits,
    FileUse,
    SpaceUse,
    file_uses,
    files_to_rewrite,
    space_use,
    time_to_rewrite,
)
from minflinkd.filemerging.segments import HEADER
from minflinkd.rpc.snapshot import StateHandle

KIB, MIB = 1 << 10, 1 << 20
LIMITS = CompactionLimits(max_file_size=256 * MIB)


def use(referenced: int, dead: int = 0) -> FileUse:
    return FileUse(len(HEADER) + referenced + dead, referenced)


def test_nothing_is_rewritten_below_the_limit() -> None:
    """F6"""
    assert files_to_rewrite({"a": use(1000, 200), "b": use(500, 100)}, 0, LIMITS) == frozenset()


def test_the_file_goes_of_which_the_most_is_dead() -> None:
    """The file with the most dead bytes frees the most for each byte written (F6)."""
    files = {"whole": use(1000), "half": use(1000, 1000), "mostly": use(100, 1500), "little": use(1000, 10)}
    assert files_to_rewrite(files, 0, LIMITS) == {"mostly", "half"}


def test_new_state_makes_up_for_old_waste() -> None:
    """The limit is for the job's state, not for each file (F6)."""
    files = {"worn": use(1000, 1000)}
    assert files_to_rewrite(files, 0, LIMITS) == {"worn"}
    assert files_to_rewrite(files, 10_000, LIMITS) == frozenset()


def test_a_file_that_the_last_one_made_needless_is_left() -> None:
    """Small files are chosen first. If the large one has to be rewritten anyway, they are left (F6)."""
    files = {"small": use(100, 200), "large": use(1000, 1000)}
    assert files_to_rewrite(files, 0, LIMITS) == {"large"}


def test_a_file_without_dead_bytes_is_never_worn() -> None:
    """With merging off, each state file has its own file, with a header larger than its content (F9)."""
    assert files_to_rewrite({str(n): use(4) for n in range(20)}, 0, CompactionLimits(max_file_size=1)) == frozenset()


def test_one_checkpoint_rewrites_no_more_than_a_full_file_or_a_multiple_of_its_new_state() -> None:
    """The rest follows with the next checkpoints (F6)."""
    files = {str(number): use(100, 100) for number in range(10)}
    limits = CompactionLimits(max_file_size=250)
    assert len(files_to_rewrite(files, 0, limits)) == 2
    assert len(files_to_rewrite(files, 100, limits)) == REWRITTEN_PER_NEW
    assert len(files_to_rewrite(files, 0, CompactionLimits(max_file_size=10))) == 1, "one in any case"


def test_many_small_files_are_put_together() -> None:
    """While it lives, every file is an entry of the NameNode. Half of the files are rewritten at a time (F6)."""
    files = {f"{number:03d}": use(100 + number) for number in range(64)}
    assert files_to_rewrite(files, 100, LIMITS) == {f"{number:03d}" for number in range(32)}
    assert files_to_rewrite(files, 100, CompactionLimits(max_file_size=100)) == frozenset(), "it would make no fewer"


TWICE = CompactionLimits(max_file_size=1000, max_amplification=2.0)


def stored(referenced: int, size: int) -> FileUse:
    """Return a file of `size` bytes, so that the sums of a test are exact. Its dead bytes are fewer by the header."""
    return FileUse(size, referenced)


WORN: dict[str, tuple[dict[str, FileUse], int, CompactionLimits, set[str]]] = {
    "nothing, just at the limit": ({"a": stored(100, 200)}, 0, TWICE, set()),
    "a file, a byte beyond the limit": ({"a": stored(100, 201)}, 0, TWICE, {"a"}),
    "a byte beyond, if new state does not make up for it": ({"a": stored(100, 202)}, 1, TWICE, {"a"}),
    "not if it does": ({"a": stored(100, 201)}, 1, TWICE, set()),
    "as many as come to the limit exactly": (
        {"a": stored(0, 58), "b": stored(10, 58), "c": stored(40, 34)},
        0,
        TWICE,
        {"a"},
    ),
    "the first by name of two that are alike": ({"b": stored(100, 250), "a": stored(100, 250)}, 0, TWICE, {"a"}),
    "the cheapest for each byte that it frees": (
        {"a": stored(100, 308), "b": stored(20, 88), "c": stored(100, 104)},
        0,
        TWICE,
        {"b"},
    ),
    "as much as a file holds": (
        {name: stored(100, 400) for name in "abcd"},
        0,
        CompactionLimits(max_file_size=200, max_amplification=1.0),
        {"a", "b"},
    ),
    "as much as the new state allows": (
        {name: stored(100, 400) for name in "abcd"},
        75,
        CompactionLimits(max_file_size=200, max_amplification=1.0),
        {"a", "b", "c"},
    ),
    "a small one, if a large one before it is too much": (
        {"a": stored(100, 1000), "b": stored(150, 1000), "c": stored(50, 110)},
        0,
        CompactionLimits(max_file_size=200, max_amplification=1.0),
        {"a", "c"},
    ),
    "without the larger of two, either of which the last one made needless": (
        {"a": stored(10, 58), "b": stored(30, 138), "c": stored(100, 308), "d": stored(4, 4)},
        0,
        TWICE,
        {"a", "c"},
    ),
    "without both, if the last one is enough": (
        {"a": stored(10, 58), "b": stored(30, 138), "c": stored(100, 308), "d": stored(34, 34)},
        0,
        TWICE,
        {"c"},
    ),
    "none of those that the last one made needless": (
        {"small": stored(10, 40), "middle": stored(30, 60), "large": stored(300, 702)},
        0,
        CompactionLimits(max_file_size=1000, max_amplification=1.2),
        {"large"},
    ),
}


@pytest.mark.parametrize("what", WORN)
def test_what_is_rewritten_of_worn_files(what: str) -> None:
    """As few bytes as come to the limit, and no more than a checkpoint may spend (F6)."""
    files, new, limits, chosen = WORN[what]
    assert files_to_rewrite(files, new, limits) == chosen


def small(max_file_size: int, max_files: int) -> CompactionLimits:
    return CompactionLimits(max_file_size=max_file_size, max_amplification=9.0, max_files=max_files)


SMALL: dict[str, tuple[list[int], CompactionLimits, str]] = {
    "none, if there are fewer than allowed": ([1, 1, 1, 1, 1], small(1000, 6), ""),
    "half of them, if there are as many": ([1, 1, 1, 1, 1, 1], small(1000, 6), "abc"),
    "so many that half as many as allowed stay": ([1, 1, 1, 1, 1, 1, 1], small(1000, 5), "abcde"),
    "the smallest": ([6, 5, 4, 3, 2, 1], small(1000, 6), "def"),
    "none that is larger than a quarter of a file": ([250, 251, 1, 250, 251, 251], small(1000, 6), "acd"),
    "as much as a checkpoint may spend": ([40, 40, 40, 30, 30, 30, 40, 40], small(160, 3), "adef"),
}


@pytest.mark.parametrize("what", SMALL)
def test_which_small_files_are_put_together(what: str) -> None:
    """A name node has an entry for each (F6)."""
    sizes, limits, chosen = SMALL[what]
    files = {name: use(size) for name, size in zip("abcdefgh", sizes, strict=False)}
    assert files_to_rewrite(files, 0, limits) == set(chosen)


def test_worn_files_are_paid_for_before_small_ones() -> None:
    """Both come out of what one checkpoint may spend, and a worn file does not count as a small one (F6)."""
    files = {"worn": use(60, 900), **{str(number): use(20) for number in range(6)}}
    limits = CompactionLimits(max_file_size=100, max_amplification=2.0, max_files=6)
    assert files_to_rewrite(files, 0, limits) == {"worn", "0", "1"}
    assert files_to_rewrite(files, 0, CompactionLimits(max_file_size=100, max_amplification=2.0, max_files=7)) == {
        "worn"
    }


def test_the_dead_bytes_of_a_file_are_those_that_a_rewrite_frees() -> None:
    """The header is written again with the rest (F6)."""
    assert use(100, 7).dead == 7
    assert FileUse(len(HEADER) + 100, 100).dead == 0
    assert FileUse(50, 100).dead == 0, "of a file that is longer than anybody knows"


def test_a_file_has_the_size_that_is_known_of_it() -> None:
    """Otherwise it ends with its last segment, wherever that is in the list (F6)."""
    handles = [StateHandle("f", 108, 5, "z"), StateHandle("f", 8, 100, "x")]
    assert file_uses(handles, {}) == {"f": FileUse(113, 105)}
    assert file_uses(handles, {"f": 112, "g": 9}) == {"f": FileUse(112, 105)}
    assert file_uses([], {"f": 112}) == {}
    assert SpaceUse().amplification == 1.0


def test_a_rewrite_takes_as_long_as_the_upload_and_never_most_of_the_time_limit() -> None:
    """If the storage is slow, it is left to several checkpoints (F6)."""
    assert time_to_rewrite(0.0, 600.0) == REWRITE_TIME
    assert time_to_rewrite(10.0, 600.0) == 20.0
    assert time_to_rewrite(100.0, 600.0) == 150.0
    assert time_to_rewrite(1.0, 4.0) == 1.0


@given(
    files=st.dictionaries(
        st.integers(0, 200).map(str),
        st.builds(use, st.integers(0, 2000), st.integers(0, 2000) | st.just(0)),
        max_size=100,
    ),
    new=st.integers(0, 3000),
    limits=st.builds(
        CompactionLimits,
        max_file_size=st.integers(1, 20_000),
        max_amplification=st.floats(1.0, 3.0),
        max_files=st.integers(2, 64),
    ),
)
def test_the_limit_holds_at_a_bounded_cost_and_none_is_rewritten_in_vain(
    files: dict[str, FileUse], new: int, limits: CompactionLimits
) -> None:
    """One checkpoint comes below the limit, or has spent all that it may (F6)."""
    chosen = files_to_rewrite(files, new, limits)
    budget = max(limits.max_file_size, REWRITTEN_PER_NEW * new)
    cost = sum(files[name].referenced for name in chosen)
    needed = space_use(files).referenced + new

    def excess(gone: frozenset[str]) -> float:
        kept = sum(each.stored for name, each in files.items() if name not in gone)
        moved = sum(files[name].referenced + len(HEADER) for name in gone)  # as if each had a header of its own again
        return kept + moved + new - limits.max_amplification * needed

    assert cost <= budget or len(chosen) == 1
    unworn = [each for name, each in files.items() if name not in chosen and each.dead]
    if excess(chosen) > 1e-6:
        assert all(cost + each.referenced > budget for each in unworn), "an affordable file with dead bytes was left"
    if len(files) < limits.max_files:
        assert all(files[name].dead for name in chosen)
        assert all(excess(chosen - {name}) > -1e-6 for name in chosen), "it would have been enough without"


def test_a_segment_is_counted_once_however_many_refer_to_it() -> None:
    """A segment counts once, even if state files have the same content, or tasks share a file (F6)."""
    one, two, old = StateHandle("f", 8, 10, "x"), StateHandle("f", 18, 20, "y"), StateHandle("g", 108, 5, "z")
    uses = file_uses([one, one, two, old], {"f": 100})
    assert uses == {"f": FileUse(100, 30), "g": FileUse(113, 5)}, "at least as long as its last known segment"
    assert space_use(uses) == SpaceUse(213, 35)
    assert (SpaceUse(130, 100).amplification, SpaceUse(0, 0).amplification) == (1.3, 1.0)


@dataclass
class Job:
    """A job's state in segments. Each checkpoint replaces some. A physical file is deleted with its last segment."""

    segments: int
    size: int  # bytes of each segment
    limits: CompactionLimits
    handles: dict[int, StateHandle] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    checkpoint: int = 0
    new: int = 0
    rewritten: int = 0

    def take(self, changed: set[int]) -> None:
        self.checkpoint += 1
        held = {number: handle for number, handle in self.handles.items() if number not in changed}
        new = len(changed) * self.size
        worn = files_to_rewrite(file_uses(held.values(), self.sizes), new, self.limits)
        moved = {number for number, handle in held.items() if handle.file in worn}
        self.write([*sorted(changed), *sorted(moved)])
        if self.checkpoint > 1:
            self.new += new
            self.rewritten += len(moved) * self.size
        used = {handle.file for handle in self.handles.values()}
        self.sizes = {name: size for name, size in self.sizes.items() if name in used}

    def write(self, numbers: list[int]) -> None:
        files = 0
        end = self.limits.max_file_size
        for number in numbers:
            if end + self.size > self.limits.max_file_size:
                files, end = files + 1, len(HEADER)
            name = f"{self.checkpoint}-{files}"
            self.handles[number] = StateHandle(name, end, self.size, "")
            end += self.size
            self.sizes[name] = end

    def space(self) -> SpaceUse:
        return space_use(file_uses(self.handles.values(), self.sizes))


Workload = Callable[[random.Random, int], set[int]]


def uniform(share: float) -> Workload:
    return lambda chance, count: set(chance.sample(range(count), max(1, round(count * share))))


def skewed(share: float) -> Workload:
    """Nine tenths of the changes are in less than two thirds of the state. The rest is cold."""
    return lambda chance, count: {int(count * chance.random() ** 4) for _ in range(max(1, round(count * share)))}


def ageing(share: float) -> Workload:
    """The oldest segments change first, as in a window's state."""
    position = 0

    def changed(_: random.Random, count: int) -> set[int]:
        nonlocal position
        length = max(1, round(count * share))
        position += length
        return {number % count for number in range(position, position + length)}

    return changed


@pytest.mark.parametrize(
    ("state", "segments", "workload", "max_file_size", "most"),
    [
        pytest.param(4 * MIB, 64, uniform(0.5), 256 * MIB, 1.1, id="4 MiB, half of it new each time"),
        pytest.param(4 * MIB, 64, uniform(1.0), 256 * MIB, 0.0, id="4 MiB, all of it new each time"),
        pytest.param(4 * MIB, 64, uniform(0.1), 256 * MIB, 1.3, id="4 MiB, a tenth"),
        pytest.param(4 * MIB, 64, uniform(0.01), 256 * MIB, 1.0, id="4 MiB, a single segment"),
        pytest.param(4 * MIB, 64, skewed(0.1), 256 * MIB, 1.5, id="4 MiB, hot and cold"),
        pytest.param(4 * MIB, 64, ageing(0.05), 256 * MIB, 1.0, id="4 MiB, the oldest"),
        pytest.param(200 * MIB, 200, uniform(0.01), 256 * MIB, 1.5, id="200 MiB, 1 %"),
        pytest.param(200 * MIB, 800, uniform(0.01), 256 * MIB, 1.7, id="200 MiB, 1 % in small pieces"),
        pytest.param(200 * MIB, 800, skewed(0.01), 256 * MIB, 2.0, id="200 MiB, 1 %, hot and cold"),
        pytest.param(200 * MIB, 800, uniform(0.01), 32 * MIB, 1.7, id="200 MiB, 1 %, in files of 32 MiB"),
        pytest.param(200 * MIB, 200, ageing(0.01), 32 * MIB, 1.0, id="200 MiB, 1 %, the oldest"),
    ],
)
def test_300_checkpoints_stay_below_the_limit_at_a_bounded_cost(
    state: int, segments: int, workload: Workload, max_file_size: int, most: float
) -> None:
    """The test checks amplification, the number of files, and `most` bytes rewritten for each new one (F6)."""
    chance = random.Random(1)
    limits = CompactionLimits(max_file_size=max_file_size)
    job = Job(segments, state // segments, limits)
    job.take(set(range(segments)))
    for _ in range(300):
        job.take(workload(chance, segments))
        assert job.space().referenced == state
        assert job.space().amplification <= 1.301, "1.3, and the headers"
        assert len(job.sizes) <= limits.max_files + 4 * state // max_file_size
    assert job.rewritten <= most * job.new


@pytest.mark.parametrize(
    ("segments", "share", "every", "most"),
    [
        pytest.param(100, 0.1, 10, 0.8, id="a tenth of its files is new with each snapshot"),
        pytest.param(100, 0.3, 10, 0.8, id="three tenths"),
        pytest.param(100, 1.0, 10, 0.0, id="all of them"),
        pytest.param(100, 0.1, 25, 0.5, id="a tenth, after 25 checkpoints"),
        pytest.param(400, 0.1, 10, 1.2, id="a tenth, in small files"),
    ],
)
def test_changelogs_between_snapshots_stay_below_the_limit(
    segments: int, share: float, every: int, most: float
) -> None:
    """As with RocksDB, each checkpoint adds a changelog. A snapshot ends those, and replaces other files (F6)."""
    chance = random.Random(1)
    job = Job(segments, 200 * MIB // segments, LIMITS)
    job.take(set(range(segments)))
    for number in range(1, 301):
        new = {segments + number}
        if number % every == 0:
            job.handles = {kept: handle for kept, handle in job.handles.items() if kept < segments}
            new |= set(chance.sample(range(segments), round(segments * share)))
        job.take(new)
        assert job.space().amplification <= 1.301, "1.3, and the headers"
    assert job.rewritten <= most * job.new


@given(st.data())
def test_any_history_stays_below_the_limit(data: st.DataObject) -> None:
    """The limit holds even for the worst changes, provided that one checkpoint may rewrite a whole file (F6)."""
    segments = data.draw(st.integers(1, 30))
    job = Job(segments, 1000, CompactionLimits(max_file_size=30_100, max_files=8))
    job.take(set(range(segments)))
    for changed in data.draw(st.lists(st.sets(st.integers(0, segments - 1)), max_size=25)):
        job.take(changed)
        space = job.space()
        assert space.stored <= 1.3 * space.referenced + len(HEADER) * len(job.sizes)
        assert len(job.sizes) <= 8


@pytest.mark.parametrize("limit", [1.05, 2.0])
def test_a_stricter_limit_costs_more(limit: float) -> None:
    """The option trades space for writes (F6)."""
    jobs = [Job(64, 64 * KIB, CompactionLimits(max_file_size=MIB, max_amplification=each)) for each in (limit, 1.3)]
    for job in jobs:
        chance = random.Random(3)
        job.take(set(range(64)))
        for _ in range(100):
            job.take(uniform(0.05)(chance, 64))
        assert job.space().amplification <= job.limits.max_amplification + 0.001
    assert (jobs[0].rewritten > jobs[1].rewritten) == (limit < 1.3)
