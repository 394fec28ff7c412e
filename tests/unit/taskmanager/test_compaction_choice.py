"""Which small files of a table are joined (K5)."""

from __future__ import annotations

import math
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from minflinkd.taskmanager.session.sinks.compaction.choice import SizedFile, groups

TARGET = 1000
FILES = st.lists(st.builds(SizedFile, st.integers(0, 2 * TARGET), st.sampled_from("abc")), max_size=40)


@given(FILES)
def test_a_group_is_of_one_partition_and_becomes_one_file_of_about_the_target(files: list[SizedFile]) -> None:
    """No file is in two groups, and none is alone, as writing it again would help nobody (K5)."""
    found = groups(files, TARGET)
    assert not Counter(file for group in found for file in group) - Counter(files)
    for group in found:
        assert len(group) > 1
        assert len({file.partition for file in group}) == 1
        assert sum(file.size for file in group) <= 1.25 * TARGET


@given(FILES)
def test_few_small_files_are_left_when_there_is_nothing_more_to_join(files: list[SizedFile]) -> None:
    """Those that are left are each more than twice as large as all smaller ones, or too large for the target (K5)."""
    while found := groups(files, TARGET):
        joined = [file for group in found for file in group]
        left = list((Counter(files) - Counter(joined)).elements())
        files = left + [SizedFile(sum(f.size for f in group), group[0].partition) for group in found]
    for partition in "abc":
        small = sorted(f.size for f in files if f.partition == partition and 0 < f.size < 0.4 * TARGET)
        assert len(small) <= math.log2(TARGET) + 1, small


def test_a_row_is_written_again_a_few_times_however_often_the_table_is_compacted() -> None:
    """Without a choice by size, each of these compactions would write half of the target again (K5)."""
    rng = random.Random(7)
    files: list[SizedFile] = []
    arrived = written = 0
    for _ in range(2000):
        new = [SizedFile(rng.randint(1, 3)) for _ in range(rng.randint(1, 5))]
        arrived += sum(file.size for file in new)
        files += new
        for group in groups(files, TARGET):
            size = sum(file.size for file in group)
            written += size
            files = [*(Counter(files) - Counter(group)).elements(), SizedFile(size)]
    assert written <= arrived * math.log2(TARGET / 2)
    assert sum(file.size >= 0.75 * TARGET for file in files) >= arrived / TARGET * 0.7
    assert len([file for file in files if file.size < 0.75 * TARGET]) <= 12
