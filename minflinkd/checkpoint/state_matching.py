"""Decides which state of a snapshot goes to which task, operator and source of a job's (new) version (C25).

Vertices are matched by id, and their operators and sources by kind and order. State never goes to another vertex. What
cannot be matched is refused, with all reasons at once. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from minflinkd.checkpoint.state_meaning import change
from minflinkd.rpc.snapshot import PlanNode, TaskSnapshot
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import TaskId, VertexId

WAY_OUT = "to continue from the recorded offsets with empty state: restore: {path: <the same>, offsets: latest}"
ALLOW = "to drop it: restore: {allow-non-restored-state: true}"
ALLOW_CHANGED = f"to continue with it anyway: restore: {{allow-changed-state: true}}; {WAY_OUT}"
FRESH = (  # as a hot restart words it
    "to run it with empty state from where the job stands: minflinkd stop JOB, then submit it with "
    "restore: {path: <that savepoint>, offsets: latest}"
)
ALLOW_CHANGED_HERE = f"to continue with it anyway: --allow-changed-state; {FRESH}"


class StateNotMatched(MinflinkError):
    """State would be lost, or would go to another vertex than it came from."""

    code = "state-not-matched"

    def __init__(self, reasons: Sequence[Reason]) -> None:
        text = "; ".join(reason.problem for reason in reasons)
        super().__init__(f"the state does not fit the job: {text}", hint=reasons[0].hint)
        self.reasons = tuple(reasons)


class StateMeaningChanged(StateNotMatched):
    """State would change its meaning: a sum read as a maximum, or values keyed by `k` read as keyed by `upper(k)`."""

    code = "state-meaning-changed"


@dataclass(frozen=True)
class Reason:
    """`vertex`: the vertex of the new version that the state belongs to; "" if it is not a single vertex.

    `changes_meaning`: the state fits, but would be read as something else.
    """

    problem: str
    hint: str = WAY_OUT
    vertex: str = ""
    changes_meaning: bool = False

    @property
    def code(self) -> str:
        return (StateMeaningChanged if self.changes_meaning else StateNotMatched).code


Verdicts = Mapping[int, str]
"""What Spark says of the types of state, by the number of the new query's operator: "" where they fit, or why not."""


NO_VERDICTS: Verdicts = {}


def all_fit(nodes: Sequence[PlanNode]) -> Verdicts:
    """For callers that leave the decision to Spark."""
    return {node.number: "" for node in nodes if node.stateful}


@dataclass(frozen=True)
class Placement:
    """Maps new number -> number in the snapshot. A source missing from `sources` is new and read from its beginning."""

    operators: Mapping[int, int] = field(default_factory=dict)
    sources: Mapping[int, int] = field(default_factory=dict)
    in_place: bool = True  # nothing has moved, been added or removed

    @property
    def moves(self) -> bool:
        return not self.in_place


def match_nodes(
    old: Sequence[PlanNode],
    new: Sequence[PlanNode],
    *,
    allow_non_restored: bool = False,
    allow_changed: bool = False,
    verdicts: Verdicts = NO_VERDICTS,
) -> Placement:
    """Match the state of a query with the nodes `old` to a query with the nodes `new`. Raises StateNotMatched.

    Without a verdict the recorded types must be the same. That can be stricter or laxer than Spark's check.
    `allow_changed`: state may change its meaning.
    """
    doubled = _on_several_routes(old) | _on_several_routes(new)
    before, after = _grouped(old, doubled), _grouped(new, doubled)
    reasons: list[Reason] = []
    operators: dict[int, int] = {}
    sources: dict[int, int] = {}
    for key in sorted({*before, *after}):
        had, has = before.get(key, []), after.get(key, [])
        stateful, vertex, kind, _ = key
        if not has:
            if not allow_non_restored:
                reasons.append(Reason(f"{_name(vertex)} had {_what(stateful, kind)}, and has none any more", ALLOW))
        elif not had:
            if stateful:
                problem = f"{_name(vertex)} has {_what(stateful, kind)}, for which there is no state"
                reasons.append(Reason(problem, vertex=vertex))
        elif len(had) != len(has):
            reasons.append(Reason(f"{_name(vertex)} has {len(has)} x {kind}, and had {len(had)}", vertex=vertex))
        else:
            for left, right in zip(had, has, strict=True):
                if stateful and (problem := _unfit(left, right, verdicts)):
                    reasons.append(Reason(f"the state of {_name(vertex)} ({kind}) {problem}", vertex=vertex))
                elif stateful and not allow_changed and (problem := change(kind, left.meaning, right.meaning)):
                    text = f"the state of {_name(vertex)} ({kind}) {problem}"
                    reasons.append(Reason(text, ALLOW_CHANGED, vertex, changes_meaning=True))
                (operators if stateful else sources)[right.number] = left.number
    if reasons:
        only_meaning = all(reason.changes_meaning for reason in reasons)
        raise (StateMeaningChanged if only_meaning else StateNotMatched)(reasons)
    lines_had = {node.number: node.offset_lines for node in old if not node.stateful}
    lines_have = {node.number: node.offset_lines for node in new if not node.stateful}
    in_place = (
        lines_had == lines_have
        and all(a == b for a, b in (*operators.items(), *sources.items()))
        and len(operators) == sum(node.stateful for node in old)
        and len(sources) == sum(not node.stateful for node in old) == sum(not node.stateful for node in new)
    )
    return Placement(operators, sources, in_place)


def match_tasks(
    snapshots: Iterable[TaskSnapshot],
    tasks: Mapping[TaskId, Collection[VertexId]],
    *,
    allow_non_restored: bool = False,
) -> dict[TaskId, TaskSnapshot]:
    """Return the snapshot that each task starts from. A task without one starts empty. Raises StateNotMatched.

    A task may have another id than its snapshot. It is identified by the vertices that hold state.
    """
    reasons: list[Reason] = []
    found: dict[TaskId, TaskSnapshot] = {}
    for snapshot in snapshots:
        own = {node.vertex for node in snapshot.operators if node.vertex and node.vertex not in snapshot.inputs}
        held = own or {snapshot.task_id}
        heirs = [task for task, vertices in tasks.items() if held & set(vertices)]
        names = ", ".join(sorted(held))
        if snapshot.input_ended and any(node.stateful for node in snapshot.operators):
            reasons.append(Reason(f"time has ended for the state of {names}: all that came later would be late"))
        if not heirs:
            # A task that only passes on what others produce. After an aligned cut it has nothing to keep.
            passes_on = bool(snapshot.operators) and not own and not snapshot.unaligned
            if snapshot.batch_id >= 0 and not passes_on and not allow_non_restored:
                reasons.append(Reason(f"there is state of {names}, and no such vertex", ALLOW))
        elif len(heirs) > 1:
            reasons.append(
                Reason(f"{names} ran as one task, and {' and '.join(sorted(heirs))} are two: state is not divided")
            )
        elif heirs[0] in found:
            other = found[heirs[0]].task_id
            reasons.append(Reason(f"the tasks {other} and {snapshot.task_id} are one now: state is not joined"))
        else:
            found[heirs[0]] = snapshot
    if reasons:
        raise StateNotMatched(reasons)
    return found


def ended_inputs(snapshots: Sequence[TaskSnapshot]) -> tuple[VertexId, ...]:
    """Return the sources that had ended while other tasks kept running.

    Tasks restored from them treat further input as late, or never read it.
    """
    if all(snapshot.input_ended for snapshot in snapshots):
        return ()
    ended = (snapshot for snapshot in snapshots if snapshot.input_ended)
    nodes = ((node, snapshot) for snapshot in ended for node in snapshot.operators)
    found = {VertexId(node.vertex) for node, task in nodes if not node.stateful and node.vertex not in task.inputs}
    return tuple(sorted(found - {VertexId("")}))


def _unfit(old: PlanNode, new: PlanNode, verdicts: Verdicts) -> str:
    if old.sides and new.sides and old.sides != new.sides:
        return f"belongs to another join than before: {new.sides} instead of {old.sides}"
    verdict = verdicts.get(new.number)
    if verdict is None:
        return "has other types than before" if old.fingerprint != new.fingerprint else ""
    return f"has other types than before: {verdict}" if verdict else ""


_Key = tuple[bool, str, str, str]


def _grouped(nodes: Sequence[PlanNode], doubled: set[str]) -> dict[_Key, list[PlanNode]]:
    groups: dict[_Key, list[PlanNode]] = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node.number):
        groups[node.stateful, node.vertex, node.kind, node.route if node.vertex in doubled else ""].append(node)
    return groups


def _on_several_routes(nodes: Sequence[PlanNode]) -> set[str]:
    routes: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        routes[node.vertex].add(node.route)
    return {vertex for vertex, ways in routes.items() if len(ways) > 1}


def _name(vertex: str) -> str:
    return f"vertex {vertex}" if vertex else "the query"


def _what(stateful: bool, kind: str) -> str:
    return f"state ({kind})" if stateful else f"a source ({kind})"
