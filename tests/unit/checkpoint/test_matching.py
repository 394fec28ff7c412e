"""Which state goes to which vertex, and what is refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from minflinkd.checkpoint.state_matching import Placement, StateNotMatched, all_fit, match_nodes, match_tasks
from minflinkd.rpc.snapshot import PlanNode, TaskSnapshot
from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId, VertexId


def plan(*parts: str) -> tuple[PlanNode, ...]:
    """Return a plan of nodes `vertex:Kind[:fingerprint[:route]]` in order. A lower-case kind is a source's format."""
    found: list[PlanNode] = []
    for part in parts:
        vertex, kind, fingerprint, route = [*part.split(":"), "", ""][:4]
        stateful = kind[0].isupper()
        number = sum(node.stateful == stateful for node in found)
        found.append(
            PlanNode(number=number, stateful=stateful, vertex=vertex, kind=kind, fingerprint=fingerprint, route=route)
        )
    return tuple(found)


UNION = ("da:Deduplicate", "a:json", "db:Deduplicate", "b:json")


def refusal(old: tuple[PlanNode, ...], new: tuple[PlanNode, ...], *, allow: bool = False) -> str:
    with pytest.raises(StateNotMatched) as caught:
        match_nodes(old, new, allow_non_restored=allow)
    return str(caught.value)


def test_the_same_plan_stays_in_place() -> None:
    """C25."""
    assert match_nodes(plan(*UNION), plan(*UNION)) == Placement({0: 0, 1: 1}, {0: 0, 1: 1}, in_place=True)


def test_two_vertices_that_exchange_their_places_keep_their_state() -> None:
    """State follows its vertex by name, not by its place in the plan (C25)."""
    new = plan("db:Deduplicate", "b:json", "da:Deduplicate", "a:json")
    assert match_nodes(plan(*UNION), new) == Placement({0: 1, 1: 0}, {0: 1, 1: 0}, in_place=False)


def test_a_new_stateful_vertex_is_refused_even_if_state_may_be_left_behind() -> None:
    """Spark has no empty state in the middle of a query (C25)."""
    new = plan("dc:Deduplicate", "c:json", *UNION)
    assert "vertex dc has state (Deduplicate), for which there is no state" in refusal(plan(*UNION), new, allow=True)


def test_a_new_source_is_read_from_its_beginning() -> None:
    """C25."""
    placement = match_nodes(plan(*UNION), plan("c:json", *UNION))
    assert placement == Placement({0: 0, 1: 1}, {1: 0, 2: 1}, in_place=False)


def test_a_removed_vertex_is_refused_unless_its_state_may_be_left_behind() -> None:
    """State that has no vertex is an error unless it is allowed (C25)."""
    new = plan("db:Deduplicate", "b:json")
    text = refusal(plan(*UNION), new)
    assert "vertex da had state (Deduplicate), and has none any more" in text
    assert "vertex a had a source (json), and has none any more" in text
    assert "allow-non-restored-state" in text
    placement = match_nodes(plan(*UNION), new, allow_non_restored=True)
    assert placement == Placement({0: 1}, {0: 1}, in_place=False)


def test_the_last_vertex_removed_moves_nothing_and_is_not_in_place() -> None:
    """The state that is left behind has to be removed (C25)."""
    new = plan("da:Deduplicate", "a:json")
    assert not match_nodes(plan(*UNION), new, allow_non_restored=True).in_place


def test_state_of_other_types_is_refused() -> None:
    """The fingerprint of the types tells (C25)."""
    text = refusal(plan("w:Aggregate:1", "a:json"), plan("w:Aggregate:2", "a:json"), allow=True)
    assert "the state of vertex w (Aggregate) has other types than before" in text


def test_another_kind_of_state_in_a_vertex_is_refused() -> None:
    """C25."""
    text = refusal(plan("w:Aggregate", "a:json"), plan("w:Deduplicate", "a:json"))
    assert "vertex w had state (Aggregate)" in text
    assert "vertex w has state (Deduplicate)" in text


def test_another_number_of_operators_in_a_vertex_is_refused() -> None:
    """Nobody can tell which of them is which (C25)."""
    text = refusal(plan("w:Aggregate", "w:Aggregate", "a:json"), plan("w:Aggregate", "a:json"), allow=True)
    assert "vertex w has 1 x Aggregate, and had 2" in text


def test_a_vertex_read_twice_is_told_apart_by_its_readers() -> None:
    """The state of a vertex that is read twice exists once for each way to the sink (C25)."""
    old = plan("d:Deduplicate::x/u", "a:json", "d:Deduplicate::y/u")
    new = plan("d:Deduplicate::y/u", "a:json", "d:Deduplicate::x/u")
    assert match_nodes(old, new).operators == {0: 1, 1: 0}


def test_a_vertex_that_was_read_twice_keeps_the_state_of_the_reader_that_stays() -> None:
    """The other's is left behind, if that is allowed, and the other way round it is new (C25)."""
    twice = plan("d:Deduplicate::x/u", "a:json", "d:Deduplicate::y/u")
    once = plan("d:Deduplicate::y/u", "a:json")
    assert match_nodes(twice, once, allow_non_restored=True).operators == {0: 1}
    assert "vertex d has state (Deduplicate), for which there is no state" in refusal(once, twice)


def test_a_vertex_put_between_two_others_changes_nothing() -> None:
    """C25."""
    old = plan("d:Deduplicate::u", "a:json:::")
    new = plan("d:Deduplicate::between/u", "a:json")
    assert match_nodes(old, new).in_place


def snapshot(task: str, *parts: str, batch_id: int = 3) -> TaskSnapshot:
    return TaskSnapshot(
        task_id=TaskId(task),
        attempt_id=AttemptId("0" * 32),
        resource_id=ResourceId("tm-000000000000"),
        checkpoint_id=1,
        batch_id=batch_id,
        operators=plan(*parts),
    )


def tasks(**vertices: str) -> dict[TaskId, list[VertexId]]:
    return {TaskId(task): [VertexId(name) for name in names.split()] for task, names in vertices.items()}


def test_a_task_that_only_passes_on_what_another_yields_may_go() -> None:
    """Such a task may not go if its snapshot holds rows that it had not read yet (C25)."""
    passing = replace(snapshot("apart", "minutes:exchange"), inputs={VertexId("minutes"): 7})
    assert match_tasks([passing], tasks(events="events minutes out")) == {}
    with pytest.raises(StateNotMatched, match="there is state of apart"):
        match_tasks([replace(passing, unaligned=True)], tasks(events="events minutes out"))


def test_a_task_is_found_by_the_vertices_that_hold_its_state() -> None:
    """The id of its first vertex may have changed (C25)."""
    old = snapshot("a", "d:Deduplicate", "a:json")
    assert match_tasks([old], tasks(new="new a d out")) == {"new": old}


def test_a_snapshot_of_before_the_record_is_found_by_its_task() -> None:
    """An older snapshot without a record of its operators is matched by the task's id (C25)."""
    old = snapshot("a")
    assert match_tasks([old], tasks(a="a d out", b="b out2")) == {"a": old}


def test_a_task_divided_or_joined_is_refused() -> None:
    """State is neither divided nor joined, even if some of it may be left behind (C25)."""
    old = snapshot("a", "d:Deduplicate", "a:json")
    with pytest.raises(StateNotMatched, match="state is not divided"):
        match_tasks([old], tasks(a="a", d="d out"), allow_non_restored=True)
    with pytest.raises(StateNotMatched, match="state is not joined"):
        match_tasks([snapshot("a", "a:json"), snapshot("b", "b:json")], tasks(a="a b out"), allow_non_restored=True)


def test_a_task_that_is_gone_is_refused_unless_allowed() -> None:
    """A task that had read nothing yet is not missed (C25)."""
    old = snapshot("b", "b:json")
    with pytest.raises(StateNotMatched, match="there is state of b, and no such vertex"):
        match_tasks([old], tasks(a="a out"))
    assert match_tasks([old], tasks(a="a out"), allow_non_restored=True) == {}
    assert match_tasks([snapshot("b", "b:json", batch_id=-1)], tasks(a="a out")) == {}


def test_where_spark_has_spoken_of_types_its_word_counts() -> None:
    """By its own rules other types may fit, and the same types of a result may not (C25)."""
    old, new = plan("w:Aggregate:long", "a:json"), plan("w:Aggregate:double", "a:json")
    assert match_nodes(old, new, verdicts={0: ""}) == Placement({0: 0}, {0: 0}, in_place=True)
    assert "has other types than before" in refusal(old, new)
    with pytest.raises(StateNotMatched, match="other types than before: two columns instead of one"):
        match_nodes(old, old, verdicts={0: "two columns instead of one"})
    assert match_nodes(old, new, verdicts=all_fit(new)).in_place


def test_a_join_of_other_sides_or_of_another_kind_is_refused_whatever_its_types() -> None:
    """Spark does not tell one side from the other.

    If the checkpoint does not record the sides, none is refused (C25).
    """

    def join(sides: str) -> tuple[PlanNode, ...]:
        return (PlanNode(number=0, stateful=True, vertex="j", kind="Join", sides=sides),)

    with pytest.raises(StateNotMatched, match="to another join than before: b INNER a instead of a INNER b"):
        match_nodes(join("a INNER b"), join("b INNER a"), verdicts={0: ""})
    assert match_nodes(join("a INNER b"), join("a INNER b"), verdicts={0: ""}).in_place
    assert match_nodes(join(""), join("a INNER b"), verdicts={0: ""}).in_place
