"""The machine of Pods: events in, commands out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.resourcemanager.kubernetes import pods as p
from minflinkd.resourcemanager.kubernetes.observed import Observed, Stage
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import ResourceId

TM = ResourceId("tm-000000000001")
OTHER = ResourceId("tm-000000000002")
SEEN = Observed(TM, "u1", Stage.PENDING)
RUNS = replace(SEEN, stage=Stage.RUNNING)
DEAD = replace(SEEN, stage=Stage.ENDED, why="exit code 1")


def after(*events: p.Event, state: p.Pods | None = None) -> tuple[p.Pods, list[p.Command]]:
    """Return the state and all commands."""
    state, commands = state or p.Pods(), list[p.Command]()
    for event in events:
        state, new = p.step(state, event, 0.0)
        p.check_invariants(state)
        commands += new
    return state, commands


def test_a_pod_is_asked_for_and_followed_to_its_end() -> None:
    """Its exit is told once, and its object is removed (R50)."""
    state, commands = after(
        p.PodWanted(TM), p.PodCreated(TM, "u1"), p.PodSeen(RUNS), p.PodSeen(DEAD), p.PodRemoved(TM, "u1", "exit code 1")
    )
    assert commands == [p.CreatePod(TM), p.TellExit(TM, "exit code 1"), p.DeletePod(TM, "u1")]
    assert state.pods == {}


def test_what_the_watch_shows_before_the_answer_is_not_taken_back() -> None:
    """An answer may be slower than the watch (R50)."""
    state, _ = after(p.PodWanted(TM), p.PodSeen(RUNS), p.PodCreated(TM, "u1"), p.PodSeen(SEEN))
    assert state.pods[TM].phase is p.PodPhase.RUNNING


def test_a_pod_that_is_not_wanted_any_more_is_deleted_even_if_its_creation_is_under_way() -> None:
    """Perhaps it exists: the API server may have done what it did not answer (R50)."""
    _, commands = after(p.PodWanted(TM), p.PodUnwanted(TM, kill=False), p.CreationFailed(TM, unknown=True))
    assert commands[1:] == [p.GiveUpCreation(TM), p.DeletePod(TM, "", kill=True)]
    _, commands = after(p.PodWanted(TM), p.PodUnwanted(TM, kill=True), p.PodCreated(TM, "u1"))
    assert commands[-1] == p.DeletePod(TM, "u1", kill=True)


def test_a_creation_that_was_refused_leaves_nothing_and_tells_nobody() -> None:
    """Whoever asked for it gets the error (R50)."""
    state, commands = after(p.PodWanted(TM), p.CreationFailed(TM, unknown=False))
    assert (state.pods, commands) == ({}, [p.CreatePod(TM)])


def test_a_kill_is_added_to_a_stop_and_not_the_other_way_round() -> None:
    """The shorter time holds (R50)."""
    begun = (p.PodWanted(TM), p.PodCreated(TM, "u1"))
    _, commands = after(*begun, p.PodUnwanted(TM, kill=False), p.PodUnwanted(TM, kill=True))
    assert commands[1:] == [p.DeletePod(TM, "u1"), p.DeletePod(TM, "u1", kill=True)]
    _, commands = after(*begun, *(p.PodUnwanted(TM, kill=kill) for kill in (True, False, True)))
    assert commands[1:] == [p.DeletePod(TM, "u1", kill=True)]


def test_a_reason_to_wait_is_told_when_it_changes_and_when_it_goes() -> None:
    """And not with each update of the Pod (R50)."""
    waits = replace(SEEN, why="0/1 nodes are available")
    _, commands = after(p.PodWanted(TM), p.PodSeen(waits), p.PodSeen(waits), p.PodSeen(RUNS))
    assert commands[1:] == [p.TellWaiting(TM, waits.why), p.TellWaiting(TM, "")]


def test_only_a_pod_that_was_known_before_the_list_is_missed_in_it() -> None:
    """One that was created while the list was made may not be in it (R50)."""
    begun, _ = after(p.PodWanted(TM), p.PodCreated(TM, "u1"), p.PodWanted(OTHER), p.PodCreated(OTHER, "u2"))
    state, commands = after(p.PodsListed((), before=frozenset({"u1"})), state=begun)
    assert list(state.pods) == [OTHER]
    assert commands == [p.TellExit(TM, "its Pod was deleted")]


def test_a_pod_that_is_to_go_is_deleted_again_if_a_list_shows_that_nobody_has_begun() -> None:
    """The first request was lost (R50)."""
    begun, _ = after(p.PodWanted(TM), p.PodCreated(TM, "u1"), p.PodUnwanted(TM, kill=False))
    _, commands = after(p.PodsListed((RUNS,), before=frozenset({"u1"})), state=begun)
    assert commands == [p.DeletePod(TM, "u1")]
    _, commands = after(p.PodsListed((replace(RUNS, deleting=True),), before=frozenset({"u1"})), state=begun)
    assert commands == []


def test_pods_of_an_earlier_daemon_are_adopted_and_late_ones_are_told() -> None:
    """Those of the first list are asked for, so they are not told (R50)."""
    state, commands = after(p.PodsListed((RUNS,), frozenset()), p.PodSeen(Observed(OTHER, "u2", Stage.RUNNING)))
    assert {pod.resource_id: pod.adopted for pod in state.pods.values()} == {TM: True, OTHER: True}
    assert commands == [p.TellFound(OTHER)]


def test_an_ended_pod_of_an_earlier_daemon_is_removed_without_a_word() -> None:
    """Nobody here waits for it (R50)."""
    _, commands = after(p.PodsListed((DEAD,), frozenset()))
    assert commands == [p.DeletePod(TM, "u1")]


def test_another_pod_of_the_same_name_ends_the_first() -> None:
    """The uid tells them apart (R50)."""
    _, commands = after(p.PodWanted(TM), p.PodCreated(TM, "u1"), p.PodSeen(replace(RUNS, uid="u2")))
    assert commands[1:] == [p.TellExit(TM, "its Pod was replaced by another one")]
    state, commands = after(p.PodWanted(TM), p.PodCreated(TM, "u2"), p.PodRemoved(TM, "u1", "gone"))
    assert TM in state.pods


EVENTS = st.lists(
    st.one_of(
        st.builds(p.PodWanted, st.just(TM)),
        st.builds(p.PodCreated, st.just(TM), st.sampled_from(["u1", "u2"])),
        st.builds(p.CreationFailed, st.just(TM), st.booleans()),
        st.builds(p.PodUnwanted, st.just(TM), st.booleans()),
        st.builds(
            p.PodSeen,
            st.builds(
                Observed, st.just(TM), st.sampled_from(["u1", "u2"]), st.sampled_from(Stage), deleting=st.booleans()
            ),
        ),
        st.builds(p.PodRemoved, st.just(TM), st.sampled_from(["u1", "u2"]), st.just("gone")),
        st.builds(
            p.PodsListed,
            st.lists(st.builds(Observed, st.just(TM), st.just("u1"), st.sampled_from(Stage)), max_size=1).map(tuple),
            st.sets(st.sampled_from(["u1", "u2"])).map(frozenset),
        ),
        st.builds(p.PodMissing, st.just(TM)),
    ),
    max_size=12,
)


@given(EVENTS)
def test_no_order_of_events_breaks_a_rule_of_the_machine(events: list[p.Event]) -> None:
    """Answers, watch and lists come in any order. An exit is told at most once for each life (R50)."""
    state, living = p.Pods(), False
    for event in events:
        if isinstance(event, p.PodWanted) and event.resource_id in state.pods:
            continue  # ids are new
        try:
            state, commands = p.step(state, event, 0.0)
        except MinflinkError as error:
            pytest.fail(f"{event}: {error}")
        p.check_invariants(state)
        told = sum(isinstance(command, p.TellExit) for command in commands)
        assert told <= 1 + any(isinstance(event, kind) for kind in (p.PodSeen, p.PodsListed))
        living = bool(state.pods)
    assert living == bool(state.pods)
