"""Streams joined with tables: what is read of a table, and how often."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobgraph.model import RuntimeMode
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, events, job, parquet, python, task
from tests.spark.test_session_bounded import rows_of, run_to_end, write_events

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

FILES = 3  # each is a micro-batch
PEOPLE = [{"key": f"k{n}", "name": f"name {n}", "chief": f"k{n // 2}"} for n in range(7)]
CODE = """
import os

from pyspark.sql.functions import expr


def people(inputs, params):
    noted = params["noted"]

    def note(frames):
        for frame in frames:
            with open(noted, "a") as file:
                file.write("read" + os.linesep)
            yield frame

    schema = "key STRING, name STRING, chief STRING"
    table = inputs["events"].sparkSession.read.schema(schema).json(params["table"])
    return table.coalesce(1).mapInPandas(note, schema)


def named(inputs, params):
    table = people(inputs, params)
    if params["cached"]:
        table = table.cache()
    own, chief = table.alias("own"), table.alias("chief")
    rows = inputs["events"].alias("events")
    found = rows.join(own, expr("events.key = own.key")).join(chief, expr("own.chief = chief.key"))
    return found.selectExpr("events.value", "own.name", "chief.name AS chief")
"""


@pytest.mark.parametrize("cached", [False, True])
async def test_a_table_that_is_joined_twice_is_read_twice_unless_it_is_cached(
    child: Child, tmp_path: Path, cached: bool
) -> None:
    """Each row has the table's entries for its key and for the chief of that (J2).

    Exchanges are not reused, so both joins read the table in each micro-batch. A table that its function caches is read
    once, in the first micro-batch.
    """
    write_events(tmp_path / "in", FILES)
    (tmp_path / "people.json").write_text("\n".join(map(json.dumps, PEOPLE)))
    (tmp_path / "tables.py").write_text(CODE)
    noted = tmp_path / "noted"
    params: dict[str, Any] = {"table": str(tmp_path / "people.json"), "noted": str(noted), "cached": cached}
    source = events(tmp_path / "in", maxFilesPerTrigger="1")
    query = task(source, python("named", "tables:named", "events"), parquet(tmp_path / "out", "named"))
    context = job(mode=RuntimeMode.BATCH, params=params)
    attempt = await child.run(context, query, artifacts={"tables.py": str(tmp_path / "tables.py")})
    await run_to_end(child, attempt)
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(tmp_path / "s")))
    await child.stop(attempt)
    assert rows_of(tmp_path / "out", taken) == _owed(tmp_path / "in")
    reads = len(noted.read_text().splitlines())
    assert reads == (1 if cached else 2 * FILES)


def _owed(directory: Path) -> Counter[tuple[Any, ...]]:
    people = {person["key"]: person for person in PEOPLE}
    rows = [json.loads(line) for file in sorted(directory.iterdir()) for line in file.read_text().splitlines()]
    return Counter(
        (row["value"], people[row["key"]]["name"], people[people[row["key"]]["chief"]]["name"]) for row in rows
    )
