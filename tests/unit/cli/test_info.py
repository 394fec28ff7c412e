"""What `minflinkd info` says of a sink whose table is compacted (K5)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from minflinkd.cli.info import _compacted
from minflinkd.rest.schemas import CompactionsInfo, SinkInfo

SINK = SinkInfo(vertex="lake", format="delta", delivery="exactly-once")
DONE = CompactionsInfo(done=3, failed=0, files=1_240, into=6, overtaken=0, deleted=0, last=60_000, failure=None)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (None, ""),
        (DONE, "; compacted 3 min 0 s ago, 1,240 files into 6 in all"),
        (replace(DONE, deleted=1_100), "; compacted 3 min 0 s ago, 1,240 files into 6, 1,100 old ones deleted in all"),
        (
            replace(DONE, overtaken=2),
            "; compacted 3 min 0 s ago, 1,240 files into 6, 2 commits overtaken by others in all",
        ),
        (replace(DONE, failure="no such table"), "; the last compaction, 3 min 0 s ago, failed: no such table"),
    ],
)
def test_a_sink_tells_of_its_compactions(told: CompactionsInfo | None, said: str) -> None:
    """How many files were joined, or why none (K5)."""
    assert _compacted(replace(SINK, compactions=told), 240_000) == said
