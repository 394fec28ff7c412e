"""What is said of state that does not fit: every reason, its vertex, and what the user may do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from minflinkd.checkpoint.state_matching import (
    ALLOW,
    ALLOW_CHANGED,
    NO_VERDICTS,
    WAY_OUT,
    Placement,
    Reason,
    StateMeaningChanged,
    StateNotMatched,
    all_fit,
    ended_inputs,
    match_nodes,
    match_tasks,
)
from minflinkd.rpc.snapshot import Meant, PlanNode, Role, TaskSnapshot
from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId, VertexId

Plan = tuple[PlanNode, ...]


def state(vertex: str, kind: str = "Deduplicate", number: int = 0, **known: object) -> PlanNode:
    return PlanNode(number=number, stateful=True, vertex=vertex, kind=kind, **known)  # type: ignore[arg-type]


def source(vertex: str, number: int = 0, kind: str = "json", **known: object) -> PlanNode:
    return PlanNode(number=number, stateful=False, vertex=vertex, kind=kind, **known)  # type: ignore[arg-type]


def summed(column: str) -> PlanNode:
    text = f"sum({column})"
    return state("w", "Aggregate", meaning=(Meant(role=Role.AGGREGATE, text=text, exact=text, form=text),))


REASONS: dict[str, tuple[Plan, Plan, tuple[Reason, ...]]] = {
    "state that nothing has any more": (
        (state("d"), source("a")),
        (source("a"),),
        (Reason("vertex d had state (Deduplicate), and has none any more", ALLOW),),
    ),
    "a source that is gone, beside state that is new": (
        (source("a"), source("b", 1)),
        (source("a"), state("d")),
        (
            Reason("vertex b had a source (json), and has none any more", ALLOW),
            Reason("vertex d has state (Deduplicate), for which there is no state", WAY_OUT, "d"),
        ),
    ),
    "state of the query itself": (
        (),
        (state(""),),
        (Reason("the query has state (Deduplicate), for which there is no state", WAY_OUT, ""),),
    ),
    "more of a kind than before": (
        (state("d"),),
        (state("d"), state("d", number=1)),
        (Reason("vertex d has 2 x Deduplicate, and had 1", WAY_OUT, "d"),),
    ),
    "other types, and then a meaning that changed": (
        (state("d", fingerprint="1"), replace(summed("v"), number=1)),
        (state("d", fingerprint="2"), replace(summed("x"), number=1)),
        (
            Reason("the state of vertex d (Deduplicate) has other types than before", WAY_OUT, "d"),
            Reason(
                "the state of vertex w (Aggregate) holds sum(v), and would be read as sum(x)",
                ALLOW_CHANGED,
                "w",
                changes_meaning=True,
            ),
        ),
    ),
    "another join": (
        (state("j", "Join", sides="a INNER b"),),
        (state("j", "Join", sides="b INNER a"),),
        (
            Reason(
                "the state of vertex j (Join) belongs to another join than before: b INNER a instead of a INNER b",
                WAY_OUT,
                "j",
            ),
        ),
    ),
}


@pytest.mark.parametrize("what", REASONS)
def test_every_reason_names_its_vertex_and_what_to_do(what: str) -> None:
    """All reasons are told at once, and the first hint is that of the error (C25)."""
    old, new, reasons = REASONS[what]
    with pytest.raises(StateNotMatched) as refused:
        match_nodes(old, new)
    by_problem = sorted(reasons, key=lambda reason: reason.problem)
    assert sorted(refused.value.reasons, key=lambda reason: reason.problem) == by_problem
    first = refused.value.reasons[0]
    assert (refused.value.hint, refused.value.code) == (first.hint, "state-not-matched")
    codes = {reason.changes_meaning: reason.code for reason in refused.value.reasons}
    assert codes[False] == "state-not-matched"
    assert codes.get(True, "state-meaning-changed") == "state-meaning-changed"
    told = "; ".join(reason.problem for reason in refused.value.reasons)
    assert refused.value.message == f"the state does not fit the job: {told}"


def test_the_code_says_whether_it_is_only_the_meaning_that_changed() -> None:
    """Only then can the user allow all of it with one option (C25)."""
    with pytest.raises(StateMeaningChanged) as refused:
        match_nodes([summed("v")], [summed("x")])
    assert refused.value.code == "state-meaning-changed"
    assert [reason.code for reason in refused.value.reasons] == ["state-meaning-changed"]
    by_a, by_b = (
        state("d", meaning=(Meant(role=Role.KEY, text=column, exact=column, form=column),)) for column in "ab"
    )
    with pytest.raises(StateMeaningChanged, match=r"vertex d \(Deduplicate\) knew rows by a, and now knows rows by b"):
        match_nodes([by_a], [by_b])


def test_state_is_in_place_if_every_number_and_every_line_of_the_offset_log_stays() -> None:
    """Otherwise its directories and offsets are written anew for the new plan (C25)."""
    old = (state("d"), source("a"), source("b", 1))
    assert match_nodes(old, old) == Placement({0: 0}, {0: 0, 1: 1}, in_place=True)
    assert not match_nodes(old, old).moves
    read_twice = (state("d"), source("a", lines=(0, 2)), source("b", 1))
    moved = match_nodes(old, read_twice)
    assert moved == Placement({0: 0}, {0: 0, 1: 1}, in_place=False), "a is read in two places now"
    assert moved.moves
    swapped = match_nodes((state("d"), state("f", number=1)), (state("f"), state("d", number=1)))
    assert swapped == Placement({0: 1, 1: 0}, {}, in_place=False)
    added = match_nodes((source("a"),), (source("a"), source("b", 1)))
    assert added == Placement({}, {0: 0}, in_place=False)


def test_operators_of_one_kind_in_a_vertex_are_told_apart_by_their_order() -> None:
    """Spark numbers them in the order of the plan, in which they may be recorded in any order (C25)."""
    first, second = state("w", number=0, fingerprint="1"), state("w", number=1, fingerprint="2")
    assert match_nodes((second, first), (first, second)).operators == {0: 0, 1: 1}


def test_only_state_is_taken_to_fit_where_spark_decides() -> None:
    """Sources have offsets, not types (C25)."""
    assert all_fit((state("d"), source("a"), state("w", number=1))) == {0: "", 1: ""}
    other = (state("d", fingerprint="2"),)
    assert match_nodes((state("d", fingerprint="1"),), other, verdicts=all_fit(other)).in_place
    with pytest.raises(StateNotMatched):
        match_nodes((state("d", fingerprint="1"),), other, verdicts=NO_VERDICTS)


# --- tasks -------------------------------------------------------------------------------------------------------


def taken(task: str, *nodes: PlanNode, batch_id: int = 3, **known: object) -> TaskSnapshot:
    return TaskSnapshot(
        task_id=TaskId(task),
        attempt_id=AttemptId("0" * 32),
        resource_id=ResourceId("tm-000000000000"),
        checkpoint_id=1,
        batch_id=batch_id,
        operators=nodes,
        **known,  # type: ignore[arg-type]
    )


def tasks(**vertices: str) -> dict[TaskId, list[VertexId]]:
    return {TaskId(task): [VertexId(name) for name in names.split()] for task, names in vertices.items()}


D, W = taken("a", state("d"), source("a")), taken("b", state("w"), source("b"))
TASK_REASONS: dict[str, tuple[tuple[TaskSnapshot, ...], dict[TaskId, list[VertexId]], tuple[Reason, ...]]] = {
    "all tasks are gone": (
        (D, W),
        tasks(x="x"),
        (
            Reason("there is state of a, d, and no such vertex", ALLOW),
            Reason("there is state of b, w, and no such vertex", ALLOW),
        ),
    ),
    "a task before its first micro-batch is missed once it has committed one": (
        (taken("b", source("b"), batch_id=0), taken("c", source("c"), batch_id=-1)),
        tasks(x="x"),
        (Reason("there is state of b, and no such vertex", ALLOW),),
    ),
    "a task divided": (
        (D,),
        tasks(z="d out", a="a"),
        (Reason("a, d ran as one task, and a and z are two: state is not divided"),),
    ),
    "tasks joined": ((D, W), tasks(x="a d b w"), (Reason("the tasks a and b are one now: state is not joined"),)),
    "time that has ended": (
        (replace(D, input_ended=True), W),
        tasks(a="a d", b="b w"),
        (Reason("time has ended for the state of a, d: all that came later would be late"),),
    ),
}


@pytest.mark.parametrize("what", TASK_REASONS)
def test_every_task_whose_state_has_no_single_heir_is_named(what: str) -> None:
    """All reasons are told at once (C25)."""
    snapshots, now, reasons = TASK_REASONS[what]
    with pytest.raises(StateNotMatched) as refused:
        match_tasks(snapshots, now)
    assert refused.value.reasons == reasons


MATCHED: dict[str, Callable[[], tuple[TaskSnapshot, str]]] = {
    "input that has ended for a source without state": lambda: (taken("a", source("a"), input_ended=True), "a"),
    "what another task yields holds no state of this one": lambda: (
        taken("b", source("a", kind="exchange"), state("d"), inputs={VertexId("a"): 7}),
        "b",
    ),
    "state of the query itself goes with its sources": lambda: (taken("b", state(""), source("d")), "b"),
}


@pytest.mark.parametrize("what", MATCHED)
def test_a_task_is_found_by_what_is_its_own(what: str) -> None:
    """Vertices that it only reads from another task are not (C25)."""
    snapshot, heir = MATCHED[what]()
    assert match_tasks([snapshot], tasks(a="a", b="b d")) == {heir: snapshot}


def test_a_source_that_ended_while_others_went_on_is_named() -> None:
    """What a job restored from there would read of it is late, or never read (C25)."""
    ended = taken("b", state("w"), source("b"), source("c", 1), source("", 2), input_ended=True)
    passed = taken("p", source("b", kind="exchange"), source("e", 1), input_ended=True, inputs={VertexId("b"): 3})
    assert ended_inputs([D, ended, passed]) == ("b", "c", "e")
    assert ended_inputs([D, W]) == ()
    assert ended_inputs([ended, passed]) == (), "the whole job had ended"
    assert ended_inputs([]) == ()
