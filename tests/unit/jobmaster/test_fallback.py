"""Whether a job may go on from an earlier checkpoint, decided from what its sinks have published (C28)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from minflinkd.checkpoint.damage import Damage
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.statistics import CheckpointCounts
from minflinkd.jobgraph.model import (
    Checkpointing,
    CheckpointMode,
    Delivery,
    Input,
    JobGraph,
    OnDamage,
    Sink,
    Source,
    Vertex,
)
from minflinkd.jobmaster.fallback import (
    FallBack,
    Repeats,
    RestoreWouldRepeat,
    SinkFinding,
    decide,
    finding_by_guarantee,
    finding_by_tokens,
    none_whole,
)
from minflinkd.runtime.errors import Consequence
from minflinkd.runtime.ids import VertexId
from minflinkd.storage.publication import SinkTransaction, StagedToken
from tests.unit.checkpoint.builders import A1, JOB, NOON, A, completed, snapshot

OUT = VertexId("out")
FILE = Damage("1-000000007-tm.seg", "it is missing")
EXACTLY_ONCE = Checkpointing()
AT_LEAST_ONCE = Checkpointing(mode=CheckpointMode.AT_LEAST_ONCE)
POSTGRES = {"url": "jdbc:postgresql://db/x", "dbtable": "t"}


def graph(sink: Sink, checkpointing: Checkpointing = EXACTLY_ONCE) -> JobGraph:
    source = Vertex(id=VertexId("in"), source=Source(format="rate"))
    out = Vertex(id=OUT, inputs=(Input(id=source.id),), sink=sink)
    return JobGraph(name="job", vertices=(source, out), checkpointing=checkpointing)


@pytest.mark.parametrize(
    ("sink", "checkpointing", "repeats"),
    [
        pytest.param(Sink(format="kafka"), EXACTLY_ONCE, Repeats.ALLOWED, id="at-least-once"),
        pytest.param(Sink(format="console"), EXACTLY_ONCE, Repeats.ALLOWED, id="shown"),
        pytest.param(Sink(python="m:f"), EXACTLY_ONCE, Repeats.ALLOWED, id="function"),
        pytest.param(Sink(format="jdbc", options={**POSTGRES, "key": "k"}), EXACTLY_ONCE, Repeats.ALLOWED, id="key"),
        pytest.param(Sink(format="parquet", path="/x"), AT_LEAST_ONCE, Repeats.ALLOWED, id="weaker checkpoints"),
        pytest.param(Sink(format="parquet", path="/x"), EXACTLY_ONCE, None, id="files"),
        pytest.param(Sink(format="jdbc", options=POSTGRES), EXACTLY_ONCE, None, id="staged rows"),
        pytest.param(Sink(python="m:C", delivery=Delivery.EXACTLY_ONCE), EXACTLY_ONCE, None, id="class"),
    ],
)
def test_a_weaker_guarantee_allows_the_repetition_and_exactly_once_depends_on_what_was_published(
    sink: Sink, checkpointing: Checkpointing, repeats: Repeats | None
) -> None:
    """A row that may come again after any restart may come again now (C28)."""
    found = finding_by_guarantee(graph(sink, checkpointing), OUT, sink)
    assert (None if found is None else found.repeats) is repeats


def checkpoint(number: int, *tokens: str, count: int | None = None) -> CompletedCheckpoint:
    """Return a checkpoint with rows to commit. It counts as many completed ones as its number says."""
    staged = tuple(StagedToken(A1, epoch, token) for epoch, token in enumerate(tokens))
    owed = (SinkTransaction(job_id=JOB, sink=OUT, checkpoint_id=number, tokens=staged),) if staged else ()
    counts = CheckpointCounts(completed=number if count is None else count)
    return replace(completed(number, snapshot(number, A, A1, transactions=owed)), counts=counts)


@pytest.mark.parametrize(
    ("point", "later", "unreadable", "repeats", "why"),
    [
        (checkpoint(1), [checkpoint(2), checkpoint(3)], [], Repeats.NOTHING, "nothing was committed"),
        (checkpoint(1, "a"), [checkpoint(2, "a")], [], Repeats.NOTHING, "nothing was committed"),
        (checkpoint(1), [checkpoint(2), checkpoint(3, "b")], [], Repeats.TWICE, "checkpoint 3 may have committed"),
        (checkpoint(1, "a"), [checkpoint(2, "a", "b")], [], Repeats.TWICE, "checkpoint 2 may have committed"),
        (checkpoint(1), [], [2], Repeats.TWICE, "the metadata of checkpoint 2"),
        (checkpoint(1), [checkpoint(3)], [], Repeats.TWICE, "in between were deleted"),
        (replace(checkpoint(1), counts=None), [checkpoint(2)], [], Repeats.TWICE, "in between were deleted"),
    ],
)
def test_a_sink_that_commits_by_itself_repeats_nothing_only_if_there_certainly_was_nothing_to_commit(
    point: CompletedCheckpoint, later: list[CompletedCheckpoint], unreadable: list[int], repeats: Repeats, why: str
) -> None:
    """What the earlier checkpoint covers itself is no repetition. What is not known counts as committed (C28)."""
    found = finding_by_tokens(OUT, point, later, unreadable)
    assert found.repeats is repeats
    assert why in found.why


def fall_back(*repeats: Repeats) -> FallBack:
    sinks = tuple(SinkFinding(VertexId(f"sink{n}"), one, f"because {n}") for n, one in enumerate(repeats))
    return FallBack(checkpoint(5), {6: (FILE,), 7: (FILE,)}, sinks)


@pytest.mark.parametrize("on_damage", OnDamage)
def test_a_job_goes_on_by_itself_if_no_row_comes_twice(on_damage: OnDamage) -> None:
    """Whatever the option says (C28)."""
    decide(fall_back(), on_damage, directory="file:///job")
    decide(fall_back(Repeats.NOTHING, Repeats.ALLOWED), on_damage, directory="file:///job")


def test_one_sink_that_would_publish_twice_stops_the_job_and_the_error_says_what_to_do() -> None:
    """It names the damage, what is whole, the sink, both paths and the option (C28)."""
    with pytest.raises(RestoreWouldRepeat) as refused:
        decide(fall_back(Repeats.ALLOWED, Repeats.TWICE), OnDamage.REFUSE, directory="file:///job")
    error = refused.value.info()
    assert (error.code, error.consequence) == ("restore-would-repeat", Consequence.REFUSED)
    for part in ("checkpoint 7 is damaged", FILE.file, FILE.why, "Checkpoint 5 is whole", "sink1", "because 1"):
        assert part in error.message
    assert "sink0" not in error.message
    for part in ("file:///job/chk-7", "file:///job/chk-5", "checkpointing.on-damage: fall-back-and-repeat"):
        assert part in error.hint


def test_the_option_lets_a_job_repeat_what_it_has_published() -> None:
    """Somebody has decided that repeated rows are better than none (C28)."""
    decide(fall_back(Repeats.TWICE), OnDamage.FALL_BACK_AND_REPEAT, directory="file:///job")


def test_users_are_told_what_is_skipped_and_what_is_repeated() -> None:
    """The job's exceptions have it (C28)."""
    warning = fall_back(Repeats.TWICE).warning(NOON + 42_000)
    assert warning.code == "checkpoint-damaged"
    for part in ("checkpoint 7", "checkpoint 6", FILE.file, "from checkpoint 5", "42 s", "sink0: because 0"):
        assert part in warning.message


def test_without_any_whole_checkpoint_the_job_does_not_start_empty() -> None:
    """It would lose its state without a word (C28)."""
    error = none_whole({7: (FILE,)}, directory="file:///job").info()
    assert (error.code, error.consequence) == ("no-whole-checkpoint", Consequence.REFUSED)
    assert FILE.file in error.message
    assert "file:///job/chk-7" in error.hint
