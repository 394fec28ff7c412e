"""The generator itself, without Spark."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.shapes.drawing import DONE, DONE_AT_LENGTH, draw
from tests.shapes.keyed import Totals
from tests.shapes.reduction import smaller
from tests.shapes.refusals import REASONS
from tests.shapes.rows import SECOND, Row
from tests.shapes.sources import JITTER, Source
from tests.shapes.windows import Session, Window

SEEDS = 400
SECONDS = SECOND


@pytest.fixture(scope="module")
def features() -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in range(SEEDS):
        found.update(draw(seed).features.keys())
    return found


def test_a_seed_always_gives_the_same_shape() -> None:
    for seed in range(40):
        assert draw(seed) == draw(seed)
        assert draw(seed).module() == draw(seed).module()


@pytest.mark.parametrize(
    "feature",
    [
        *(
            "Sink text",
            "Sink console",
            "Source json",
            "Source parquet",
            "Source csv",
            "Source python",
            "Source kafka",
            "Source rate",
            "Source json empty",
            "Source parquet late",
        ),
        *("1 sources", "2 sources", "3 sources", "4 sources", "source read twice", "read twice"),
        *("Project", "Filter", "Explode", "Rekey", "Union", "Doubled", "Function pandas", "Function arrow"),
        *("MapInto pandas", "MapInto arrow", "StaticJoin inner", "StaticJoin left", "StaticJoin table-first"),
        *("Window tumbling", "Window sliding", "Session", "Greatest", "chain of stateful operators"),
        *("Deduplicate duplicates", "Deduplicate within", "Deduplicate distinct"),
        *("Join inner", "Join left", "Join semi", "Join inner range", "Join left range", "Join semi range"),
        *("Numbered applyInPandasWithState", "Numbered transformWithStateInPandas", "Numbered transformWithState"),
        *("Buckets applyInPandasWithState", "Buckets transformWithStateInPandas", "Buckets transformWithState"),
        *("exchange forced", "slot sharing group", "parallelism by vertex", "max-parallelism", "unaligned"),
        *(
            "Sink parquet",
            "Sink json",
            "Sink csv",
            "Sink orc",
            "Sink python",
            "Sink python update",
            "Sink python complete",
            "Rejecting",
        ),
        *("1 sinks", "2 sinks", "3 sinks", "input arrives", "input is there", "done: nothing"),
        *(f"done: {what}" for what in dict.fromkeys(what for done in (*DONE, *DONE_AT_LENGTH) for what in done)),
        *(f"refused: {reason}" for reason in REASONS),
    ],
)
def test_every_feature_occurs_in_the_first_seeds(features: Counter[str], feature: str) -> None:
    assert features[feature] > 0


def test_rows_of_a_source_are_late_by_a_day_or_not_at_all() -> None:
    """On-time rows lag behind earlier files by less than the watermark's delay."""
    source = Source(7, "json", 6, 20, 1, 15, repeats=3, late=True)
    furthest = 0
    for number in range(6):
        rows = source.file(number)
        on_time = [row for row in rows if row.v != 77 or row.ts > furthest - 3600 * SECONDS]
        assert all(row.ts > furthest - 15 * SECONDS for row in on_time)
        assert (len(rows) > len(on_time)) is (number > 1)
        furthest = max(furthest, *(row.ts for row in on_time))
    assert 2 * JITTER < 15


def test_the_order_of_tables_in_a_join_varies() -> None:
    nodes = [node for seed in range(SEEDS) for node in draw(seed).nodes if node.operator.name == "Join inner"]
    swapped = {node.operator.sql(_context(node)) is not None and node.operator.swapped for node in nodes}  # type: ignore[attr-defined]
    assert swapped == {True, False}


def test_shapes_meet_kills_hot_restarts_and_savepoints_one_after_the_other() -> None:
    drawn = {draw(seed).done for seed in range(SEEDS)}
    assert drawn >= set(DONE_AT_LENGTH)


def test_a_shape_has_a_sink_that_is_compared() -> None:
    assert all(any(sink.is_compared for sink in draw(seed).sinks) for seed in range(SEEDS))


def test_a_sliding_window_counts_a_row_in_each_of_its_windows() -> None:
    rows = Window(20, 10, True, 1, False).rows([Row(1, "a", 25 * SECONDS, 5)])
    assert sorted(rows) == [Row(1, "a", 30 * SECONDS - 1, 5), Row(1, "a", 40 * SECONDS - 1, 5)]


def test_a_session_ends_where_the_gap_begins() -> None:
    rows = [Row(1, "a", at * SECONDS, 1) for at in (0, 10, 21, 100)]
    half = SECONDS // 2
    assert Session(10).rows(rows) == [
        Row(2, "a", 20 * SECONDS + half - 1, 2),
        Row(1, "a", 31 * SECONDS + half - 1, 1),
        Row(1, "a", 110 * SECONDS + half - 1, 1),
    ]


def test_smaller_shapes_are_smaller_and_lead_to_sinks() -> None:
    for seed in range(30):
        shape = draw(seed)
        for made in smaller(shape):
            ids = {node.id for node in made.nodes}
            assert all(given in ids for node in made.nodes for given in node.inputs)
            assert all(sink.input in ids for sink in made.sinks)
            changing = {node.id for node in made.nodes if isinstance(node.operator, Totals)}
            assert all((sink.input in changing) == (sink.mode in ("update", "complete")) for sink in made.sinks) or (
                made.refused == "update into files"
            )


def _context(node):  # type: ignore[no-untyped-def]
    from tests.shapes.rows import Context

    return Context(node.id, node.inputs)
