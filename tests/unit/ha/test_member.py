"""What daemons of neighbouring versions read of each other in the election."""

from __future__ import annotations

import msgspec

from minflinkd.ha.service import Member


def test_a_member_of_the_version_before_says_no_address_for_taskmanagers() -> None:
    """It is read all the same (A13, A15a)."""
    before = b'{"name":"a:1","url":"http://a:8081","leading_since_ms":5,"epoch":7}'
    found = msgspec.json.decode(before, type=Member)
    assert found == Member(name="a:1", url="http://a:8081", leading_since_ms=5, epoch=7, rpc="")


def test_the_version_before_reads_a_member_that_says_an_address_for_taskmanagers() -> None:
    """It skips what it does not know (A13, A15a)."""
    earlier = msgspec.defstruct(
        "Member", [("name", str), ("url", str), ("leading_since_ms", int, 0), ("epoch", int, 0)]
    )
    now = msgspec.json.encode(Member(name="a:1", url="http://a:8081", epoch=7, rpc="a:6123"))
    assert msgspec.json.decode(now, type=earlier) == earlier("a:1", "http://a:8081", 0, 7)
