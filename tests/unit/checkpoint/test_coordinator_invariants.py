"""States of the coordinator that must not exist, and the checkpoints that it keeps track of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.machine.state import Doomed, Request, State, check_invariants, published_by
from minflinkd.runtime.ids import TaskId
from minflinkd.runtime.machine import InvariantViolated
from tests.unit.checkpoint.builders import A1, A, B, Story, completed, name

FORCED, MANUAL = (Request(number, CheckpointKind.MANUAL, forced=number > 1) for number in (2, 1))


def good() -> State:
    """Return a state in which everything is as full as it may be: 1 is complete, 2 is pending, 3 is being deleted."""
    state = Story().running().completed(1).pending(2).state
    return replace(
        state,
        unconfirmed={1: frozenset({A})},
        discarding={3: frozenset()},
        leaving={3: completed(3)},
        doomed=(Doomed(frozenset({name(3, A1)}), 3, True),),
        queued=(FORCED, FORCED, MANUAL),
        pinned=frozenset({1}),
        last_id=3,
    )


def test_it_is_known_up_to_which_checkpoint_each_task_has_published() -> None:
    """0 is no checkpoint. A later one that waits does not hide what was published before (K1)."""
    state = replace(Story().running().completed(1).state, completed=(completed(2), completed(3)))
    assert published_by(replace(state, unconfirmed={})) == {A: (3, 0), B: (3, 0)}
    assert published_by(replace(state, unconfirmed={3: frozenset({A, B})})) == {A: (2, 1), B: (2, 1)}
    waiting = {2: frozenset({A}), 3: frozenset({A})}
    assert published_by(replace(state, unconfirmed=waiting)) == {A: (0, 2), B: (3, 0)}
    assert published_by(replace(state, completed=(), unconfirmed={})) == {}


BROKEN: dict[str, Callable[[State], State]] = {
    "completed checkpoints out of order": lambda s: replace(s, completed=(*s.completed, *s.completed)),
    "an id is both pending and completed": lambda s: replace(s, pending={1: s.pending[2]}),
    "an id is both completed and being deleted": lambda s: replace(s, discarding={1: frozenset(), **s.discarding}),
    "an id beyond the last one": lambda s: replace(s, last_id=2),
    "a checkpoint unconfirmed that is not retained": lambda s: replace(s, unconfirmed={2: frozenset({A})}),
    "leaving, and its metadata is not being deleted": lambda s: replace(s, discarding={}),
    "pinned and not retained": lambda s: replace(s, pinned=frozenset({1, 2})),
    "unconfirmed by nobody": lambda s: replace(s, unconfirmed={1: frozenset()}),
    "unconfirmed by a task that does not run": lambda s: replace(s, unconfirmed={1: frozenset({A, TaskId("c")})}),
    "two requests queued": lambda s: replace(s, queued=(MANUAL, MANUAL)),
    "doomed files that are referenced": lambda s: replace(s, doomed=(Doomed(frozenset({name(1, A1)}), 1, True),)),
    "a pending checkpoint without attempts": lambda s: replace(s, pending={2: replace(s.pending[2], tasks={})}),
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_state_that_must_not_exist_is_found(why: str) -> None:
    """The driver checks after each step, and the error names what is broken (A3)."""
    check_invariants(good())
    with pytest.raises(InvariantViolated) as found:
        check_invariants(BROKEN[why](good()))
    assert found.value.message == f"checkpoint coordinator: {why}"


def test_all_that_is_broken_is_named() -> None:
    """One bug often breaks several rules, and each says something about it (A3)."""
    with pytest.raises(InvariantViolated, match="unconfirmed by nobody, two requests queued"):
        check_invariants(replace(good(), unconfirmed={1: frozenset()}, queued=(MANUAL, MANUAL)))


def test_an_id_that_was_not_reserved_is_found_wherever_it_is() -> None:
    """No checkpoint has an id beyond the last one: complete, pending or being deleted (A3)."""
    state = replace(good(), discarding={}, leaving={}, doomed=(), last_id=1)
    with pytest.raises(InvariantViolated, match="an id beyond the last one"):
        check_invariants(state)
    check_invariants(replace(state, pending={}))
    with pytest.raises(InvariantViolated, match="an id beyond the last one"):
        check_invariants(replace(state, pending={}, last_id=0))
    check_invariants(replace(Story().state, last_id=0))


def test_what_tasks_owe_is_kept_while_none_runs() -> None:
    """A task may come back with another version of the job (C22)."""
    check_invariants(replace(good(), attempts={}, unconfirmed={1: frozenset({TaskId("c")})}))
