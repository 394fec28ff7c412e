"""Which address a TaskManager tries when, until it finds the daemon that leads. On a clock of the test's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from minflinkd.rpc.search import (
    FORGOTTEN,
    HEAD_START,
    MOST_NAMED,
    RECONNECT_FIRST,
    RECONNECT_LONGEST,
    RECONNECT_TO_ONE_OF_MANY,
    Hint,
    Place,
    Search,
)

A, B, C, D = (("a.example", 6123), ("b.example", 6123), ("c.example", 6123), ("d.example", 6123))


def text(place: Place) -> str:
    return f"{place[0]}:{place[1]}"


def tries(search: Search, answer: Callable[[Place], str | None], *, until: float) -> Counter[Place]:
    """Play a search in which each try ends at once. `answer`: whom a standby names; None: nobody is there."""
    now, found = 0.0, Counter[Place]()
    while now < until:
        for place in search.due(now):
            found[place] += 1
            assert found.total() < 10_000, f"{place} is tried without a pause"
            leader = answer(place)
            if leader is None:
                search.failed(place, now)
            else:
                search.refused(place, leader, now)
        assert search.next_due is not None
        now = max(now, search.next_due)
    return found


def test_all_listed_addresses_are_tried_at_once() -> None:
    """None waits for another one, and each is tried by one connection at a time (A13)."""
    search = Search([A, B, A], now=5.0)
    assert search.due(5.0) == (A, B)
    assert search.due(5.0) == ()
    assert search.next_due is None


def test_a_daemon_that_fell_silent_is_tried_a_little_later() -> None:
    search = Search([A, B], now=5.0, silent=A)
    assert search.due(5.0) == (B,)
    assert search.next_due == 5.0 + HEAD_START
    assert search.due(5.0 + HEAD_START) == (A,)


def test_a_daemon_that_fell_silent_is_tried_at_once_if_a_standby_names_it() -> None:
    """It leads after all (A13)."""
    search = Search([A, B], now=0.0, silent=A)
    search.due(0.0)
    assert search.refused(B, text(A), 0.1) is Hint.NEW
    assert search.due(0.1) == (A,)


def test_the_only_address_is_tried_ever_more_slowly() -> None:
    found = tries(Search([A], now=0.0), lambda _: None, until=60.0)
    assert found[A] == pytest.approx(60.0 / RECONNECT_LONGEST, abs=5)


def test_a_standby_tells_that_there_are_several_daemons_so_the_next_leader_is_found_soon() -> None:
    """Although one address is listed, and no daemon leads yet (A13)."""
    found = tries(Search([A], now=0.0), lambda _: "", until=60.0)
    assert found[A] == pytest.approx(60.0 / RECONNECT_TO_ONE_OF_MANY, abs=5)


def test_a_leader_that_is_not_listed_is_tried_as_soon_as_it_is_named() -> None:
    """A13."""
    search = Search([A], now=0.0)
    search.due(0.0)
    assert search.refused(A, text(B), 1.0) is Hint.NEW
    assert search.due(1.0) == (B,)


def test_a_leader_that_is_being_tried_is_not_tried_twice_at_a_time() -> None:
    """The daemon would take the second connection for a newer one, and close the first (A13)."""
    search = Search([A, B], now=0.0)
    assert search.due(0.0) == (A, B)
    search.refused(A, text(B), 0.1)
    assert B not in search.due(60.0)


def test_a_named_leader_that_does_not_answer_leaves_the_list_as_it_was() -> None:
    """A13: the listed addresses are tried as before, and the named one when it is named again."""
    search = Search([A], now=0.0)
    search.due(0.0)
    search.refused(A, text(B), 0.0)
    assert search.due(0.0) == (B,)
    search.failed(B, 5.0)
    assert search.due(5.0) == (A,)
    assert search.next_due is None
    assert search.refused(A, text(B), 6.0) is Hint.KNOWN
    assert search.due(6.0) == (B,)


def test_while_the_named_leader_says_nothing_the_listed_ones_are_tried() -> None:
    """A connection to a host that is gone takes seconds to fail (A13)."""
    search = Search([A, B], now=0.0)
    search.due(0.0)
    search.refused(A, text(C), 0.0)
    search.failed(B, 0.0)
    assert search.due(0.0) == (C,)
    assert search.due(RECONNECT_FIRST) == (A, B)


@pytest.mark.parametrize("listed", [[A], [A, B], [A, B, C]])
def test_standbys_that_name_each_other_in_a_circle_are_asked_with_pauses(listed: list[Place]) -> None:
    """No more often than listed ones that do not answer, whether or not they are listed (A13)."""
    names = {A: B, B: C, C: A}
    found = tries(Search(listed, now=0.0), lambda place: text(names[place]), until=60.0)
    assert set(found) == {A, B, C}
    assert all(count <= 60.0 / RECONNECT_TO_ONE_OF_MANY + 5 for count in found.values())


def test_standbys_that_name_ever_new_addresses_do_not_lead_on_without_end() -> None:
    """The named ones need not be daemons of one cluster for that: an address may be misspelt in many ways (A13)."""
    search, number = Search([A], now=0.0), 0

    def another(_: Place) -> str:
        nonlocal number
        number += 1
        return f"host{number}.example:6123"

    found = tries(search, another, until=300.0)
    others = sum(count for place, count in found.items() if place != A)
    assert MOST_NAMED < others <= MOST_NAMED * (2 + 300.0 / FORGOTTEN)


def test_a_daemon_that_names_itself_is_asked_after_its_pause() -> None:
    """It has just begun to lead, or has just ceased to (A13)."""
    search = Search([A], now=0.0)
    search.due(0.0)
    assert search.refused(A, text(A), 0.0) is Hint.KNOWN
    assert search.due(RECONNECT_FIRST / 2) == ()
    assert search.due(RECONNECT_FIRST) == (A,)


@pytest.mark.parametrize(
    "leader", ["127.0.0.1:6123", "[::1]:6123", "localhost:6123", "0.0.0.0:6123", "b", "b:0", "b:c"]
)
def test_an_address_that_means_another_host_everywhere_is_not_followed(leader: str) -> None:
    """A leader that listens on its loopback address only is reached from its own host only (A13)."""
    search = Search([A], now=0.0)
    search.due(0.0)
    assert search.refused(A, leader, 0.0) is Hint.UNUSABLE
    assert search.due(0.0) == ()
    assert search.refused(A, leader, 0.0) is Hint.KNOWN  # the log has it already
    assert search.due(0.0) == ()


def test_a_standby_on_the_same_host_may_name_a_loopback_address() -> None:
    """A13: all daemons of a test run on one host."""
    search = Search([("127.0.0.1", 1)], now=0.0)
    search.due(0.0)
    assert search.refused(("127.0.0.1", 1), "127.0.0.1:2", 0.0) is Hint.NEW
    assert search.due(0.0) == (("127.0.0.1", 2),)


def test_an_address_of_version_six_is_understood() -> None:
    search = Search([A], now=0.0)
    search.due(0.0)
    assert search.refused(A, "[2001:db8::1]:6123", 0.0) is Hint.NEW
    assert search.due(0.0) == (("2001:db8::1", 6123),)


def test_a_leader_is_news_once() -> None:
    """The log tells it when it changes, and not every half second (A13)."""
    search = Search([A, B], now=0.0)
    search.due(0.0)
    told = [search.refused(A, text(C), 0.0), search.refused(B, text(C), 0.0)]
    search.due(1.0)
    told += [search.refused(A, text(D), 1.0), search.refused(B, "", 1.0)]
    assert told == [Hint.NEW, Hint.KNOWN, Hint.NEW, Hint.NOBODY]
