"""What a TaskManager is told about the state that a job is to continue with (C25)."""

from __future__ import annotations

import json

from msgspec.structs import replace

from minflinkd.dispatcher.state_fit import compare, held_state
from minflinkd.jobgraph.document import parse_json
from minflinkd.rpc.jobs import StateFate
from minflinkd.rpc.snapshot import Meant, PlanNode, Role, StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId
from minflinkd.taskmanager.session.state.schemas import difference
from tests.unit.dispatcher.conftest import DOCUMENT

GRAPH = parse_json(json.dumps(DOCUMENT).encode()).job()
NUMBERS = TaskId("numbers")
SCHEMA = "state/0/0/_metadata/schema"
COUNT = PlanNode(number=0, stateful=True, vertex="numbers", kind="Aggregate", fingerprint="long")


def taken(*paths: str, vertex: str = "numbers") -> TaskSnapshot:
    return TaskSnapshot(
        task_id=NUMBERS,
        attempt_id=AttemptId("a" * 32),
        resource_id=ResourceId("tm-1"),
        checkpoint_id=3,
        batch_id=7,
        files=tuple(StateFile(path, StateHandle(file="f.seg", offset=0, length=9, checksum="0")) for path in paths),
        operators=(PlanNode(number=0, stateful=True, vertex=vertex, kind="Aggregate", fingerprint="long"),),
    )


def test_only_what_describes_types_is_fetched() -> None:
    """Descriptions of types are a few hundred bytes, however large the state is (C25, H2)."""
    joined = "state/1/0/left-keyToNumValues/_metadata/schema"
    snapshot = taken(SCHEMA, joined, "state/0/0/_metadata/metadata", "state/0/1/8.changelog", "offsets/7")
    (task, held), *others = held_state(GRAPH, [snapshot], "file:///checkpoints").items()
    assert (task, others, held.root, held.operators) == (NUMBERS, [], "file:///checkpoints", snapshot.operators)
    assert [file.path for file in held.described] == [SCHEMA, joined]


def test_nothing_is_asked_of_a_task_without_state_or_of_state_without_a_task() -> None:
    """C25."""
    assert held_state(GRAPH, [taken("offsets/7", "commits/7")], "file:///checkpoints") == {}
    assert held_state(GRAPH, [taken(SCHEMA, vertex="gone")], "file:///checkpoints") == {}
    assert held_state(GRAPH, [], "file:///checkpoints") == {}


def test_what_spark_says_of_a_version_decides_whether_its_state_is_kept() -> None:
    """The comparison shows it as kept if Spark takes it, and otherwise as incompatible, with Spark's reason (H2)."""
    plans = {NUMBERS: (PlanNode(number=0, stateful=True, vertex="numbers", kind="Aggregate", fingerprint="double"),)}
    for verdict, fate in (("", StateFate.KEPT), ("a column more", StateFate.INCOMPATIBLE)):
        verdicts = {NUMBERS: {0: verdict}}
        changes, faults = compare(GRAPH, GRAPH, [taken()], plans, verdicts, allow_non_restored=True)
        assert [(change.fate, verdict in change.reason) for change in changes.state] == [(fate, True)]
        assert bool(faults) == (fate is StateFate.INCOMPATIBLE)
        assert all(verdict in fault.problem for fault in faults)
    changes, faults = compare(GRAPH, GRAPH, [taken()], plans, allow_non_restored=True)
    assert len(faults) == 1, "without a verdict the types must be those that were recorded"


def test_a_version_that_does_not_fit_its_state_is_refused_with_the_vertex_and_the_way_out() -> None:
    """The fault names the vertex, says in a few lines what changes, and how to begin anew (H2, C25)."""
    before = [f"StructField(MS[{number}],LongType,true)" for number in range(52)]
    after = [*before, "StructField(min,TimestampType,true)"]
    verdict = difference("value", *(f"StructType({','.join(fields)})" for fields in (before, after)))
    _, (fault,) = compare(
        GRAPH, GRAPH, [taken()], {NUMBERS: (COUNT,)}, {NUMBERS: {0: verdict}}, allow_non_restored=False
    )
    assert fault.path == "vertices.numbers"
    assert "min TIMESTAMP would be new in it" in fault.problem
    assert len(fault.problem) < 500
    assert "minflinkd stop" in fault.hint, "restore: is for a submission, and this is a hot restart"


def test_a_task_that_had_not_run_at_the_checkpoint_is_compared_by_what_its_state_will_mean() -> None:
    """Such a task may have state when it stops. Spark then compares the types itself (H2)."""
    sums, greatest = ((Meant(role=Role.AGGREGATE, text=text, exact=text, form=text),) for text in ("sum(v)", "max(v)"))
    before = replace(taken(), batch_id=-1, operators=(replace(COUNT, meaning=sums),))
    for meaning, fingerprint, codes in (
        (greatest, "long", ["state-meaning-changed"]),
        (greatest, "double", ["state-meaning-changed"]),
        (sums, "double", []),
    ):
        plans = {NUMBERS: (replace(COUNT, fingerprint=fingerprint, meaning=meaning),)}
        _, faults = compare(GRAPH, GRAPH, [before], plans, allow_non_restored=False)
        assert [fault.code for fault in faults] == codes
        _, faults = compare(GRAPH, GRAPH, [before], plans, allow_non_restored=False, allow_changed=True)
        assert faults == ()
