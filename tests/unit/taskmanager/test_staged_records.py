"""Records that a kafka sink has staged: what is read of them for a transaction, and its client's settings (K1)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pyarrow
import pyarrow.parquet
import pytest

from minflinkd.jobgraph.model import Sink
from minflinkd.runtime.ids import AttemptId, JobId, VertexId
from minflinkd.taskmanager.attempts.staging import waiting_directory
from minflinkd.taskmanager.session.sinks import kafka
from minflinkd.taskmanager.session.sinks.kafka import Staged, StagedRecords, client_settings
from minflinkd.taskmanager.session.sinks.marks import Part, transactions

LIMITS = {"max.block.ms": "10000", "request.timeout.ms": "8000", "delivery.timeout.ms": "15000"}


@pytest.mark.parametrize("seed", range(60))
def test_each_row_is_read_once_and_in_order_however_it_is_divided(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transactions end in the middle of files and of the batches in which these are read. Some files are restored."""
    rng = random.Random(seed)
    monkeypatch.setattr(kafka, "_BATCH", rng.randint(1, 5))
    records = StagedRecords(
        cast(Any, None),
        Sink(format="kafka"),
        JobId("j"),
        VertexId("out"),
        AttemptId("a"),
        str(tmp_path),
        lambda rows: rows,
    )
    tokens, expected = [], list[int]()
    for number in range(rng.randint(1, 4)):
        files = []
        for _ in range(rng.randint(1, 3)):
            rows = [len(expected) + n for n in range(rng.randint(1, 9))]
            directory = Path(waiting_directory(f"{tmp_path}{rng.choice(['', '/checkpoint'])}", "out"))
            directory.mkdir(parents=True, exist_ok=True)
            name = f"{len(expected)}.parquet"
            pyarrow.parquet.write_table(pyarrow.table({"value": rows}), directory / name, row_group_size=4)
            files.append((name, len(rows)))
            expected += rows
        tokens.append(Staged(job="j", id=str(number), files=tuple(files)))
    by_id = {token.id: token for token in tokens}
    begun = rng.randrange(tokens[0].rows)  # a transaction has published these of the first token
    parts = [Part(token.id, 0, token.rows) for token in tokens]
    parts[0] = Part(tokens[0].id, begun, tokens[0].rows - begun)
    read = [
        row
        for transaction in transactions(parts, rng.randint(1, 12))
        for part in transaction
        for batch in records._batches(by_id[part.token], part)
        for row in batch.column("value").to_pylist()
    ]
    assert read == expected[begun:]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, LIMITS),
        ({"max.block.ms": "1"}, LIMITS | {"max.block.ms": "1"}),
        ({"request.timeout.ms": "30000"}, {"max.block.ms": "10000", "request.timeout.ms": "30000"}),
        ({"delivery.timeout.ms": "5"}, {"max.block.ms": "10000", "delivery.timeout.ms": "5"}),
        ({"linger.ms": "9000"}, {"max.block.ms": "10000", "linger.ms": "9000"}),
    ],
)
def test_our_limits_never_contradict_those_of_the_job(options: dict[str, str], settings: dict[str, str]) -> None:
    """Kafka's client refuses a delivery.timeout.ms below request.timeout.ms and linger.ms together."""
    given = {f"kafka.{name}": value for name, value in options.items()} | {"topic": "t", "lost-mark": "skip"}
    assert client_settings(given) == settings
