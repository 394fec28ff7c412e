"""What slots have and must have (R40)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile, parse_profile

AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "off-heap", "disk", "gpu", "fpga"]), st.integers(0, 4), max_size=4
)
PROFILES = AMOUNTS.map(parse_profile)


def test_a_profile_is_read_as_people_write_it_and_shown_in_the_same_words() -> None:
    """R40."""
    profile = parse_profile({"gpu": 1, "memory": "2 GB", "cpu": "0.5", "disk": "10 GiB", "off-heap": 0})
    assert profile == ResourceProfile(extras=(("gpu", 1.0),), memory=2 * 10**9, cpu=0.5, disk=10 * 2**30)
    assert str(profile) == "0.5 cpu, 2 GB memory, 10 GiB disk, 1 gpu"
    assert str(ResourceProfile(memory=357_913_941)) == "341.3 MiB memory"
    assert not parse_profile({"gpu": 0, "memory": 0})


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("memory", "much", "'much' is not a size"),
        ("cpu", "two", "'two' is not a number"),
        ("cpu", "-1", "'-1' is not a number"),
        ("gpu", True, "'True' is not a number"),
        ("gpu", "1e9", "'1e9' is not a number"),
        ("GPU", "1", "'GPU' is neither cpu"),
    ],
)
def test_what_is_no_amount_is_refused_with_what_would_be_one(name: str, value: object, why: str) -> None:
    """R40."""
    with pytest.raises(ValueError, match=why):
        parse_profile({name: value})


def test_a_slot_of_which_nothing_is_known_serves_only_what_asks_for_nothing() -> None:
    """A TaskManager of an earlier version tells no profile (R40)."""
    assert NO_PROFILE.covers(NO_PROFILE)
    assert not NO_PROFILE.covers(parse_profile({"cpu": 1}))
    assert parse_profile({"gpu": 1}).missing(parse_profile({"gpu": 2, "memory": 1})) == ("memory", "gpu")


@given(PROFILES, PROFILES)
def test_the_least_profile_for_two_demands_covers_both_and_ranks_no_lower(
    one: ResourceProfile, two: ResourceProfile
) -> None:
    """The order by rank agrees with what covers what, so larger demands can be served first (R40)."""
    both = one | two
    assert both.covers(one)
    assert both.covers(two)
    assert both.rank >= max(one.rank, two.rank)
    assert (one.covers(two) and two.covers(one)) == (one == two)
    assert (both == one) == one.covers(two)


@given(PROFILES, st.integers(1, 7))
def test_a_share_of_a_whole_is_covered_by_it_as_often_as_there_are_shares(whole: ResourceProfile, slots: int) -> None:
    """R40."""
    share = whole.share(slots)
    assert whole.covers(share * slots)
    assert all(most >= 0 for most in whole.excess(share))
