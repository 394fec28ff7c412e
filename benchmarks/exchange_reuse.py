"""What it costs a query that Spark reuses no exchange (`spark/steady_plans.py`): micro-batch times without and with.

Queries in which Spark finds something to reuse, each over files of 10,000 rows, one a micro-batch:

    self-join   a windowed aggregate, joined with itself
    union       two projections of one windowed aggregate
    table       a stream joined with the same table of 100,000 rows twice, which is too large to be broadcast

The session is made as the TaskManager makes it (`spark/session.py`: its JVM, RocksDB, settings), in a process of its
own (`reuse_queries.py`) that runs one query after the other; nothing but `spark.sql.exchange.reuse` differs between the
two sides. They take turns (A B, then B A). Rows go to Spark's `noop` sink. Times are those of Spark's progress, of the
micro-batches with rows after the first 8.

How many exchanges each side makes is told beside; one that is not reused reads its part of the source again. With reuse
the second copy of an aggregate gets no watermark (which is why it is off), so that side may write less rows and do less
work: the difference is the most that the setting costs.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from benchmarks.figures import Row
from benchmarks.reuse_queries import QUERIES
from benchmarks.running import quick_asked, run, say
from benchmarks.spark_process import SparkProcess, spark_process
from tests.windows_job import WindowsJob

REUSE = "with reuse"
WARM = 8  # micro-batches
ROWS = 10_000  # per micro-batch
TABLE = 100_000  # rows
PARTITIONS = 2

Side = list[dict[str, Any]]  # the process's answer for each run


async def measure(base: Path, quick: bool) -> Row:
    row = Row("exchange_reuse", "A query whose exchanges are not reused, beside one whose exchanges are")
    turns, files = (1, WARM + 6) if quick else (3, WARM + 20)
    job = WindowsJob(base, files=files, rows=ROWS)
    await asyncio.to_thread(job.write_events)
    settings = {"base": str(base), "events": str(job.events), "partitions": PARTITIONS, "rows": TABLE}
    async with spark_process("benchmarks.reuse_queries", settings, base / "stderr.log") as process:
        for query in QUERIES:
            await _asked(process, query=query, reuse=False, files=files)  # so that the JVM compiles
            sides: dict[bool, Side] = {False: [], True: []}
            for turn in range(turns):
                for reuse in (False, True) if turn % 2 == 0 else (True, False):
                    found = await _asked(process, query=query, reuse=reuse, files=files)
                    sides[reuse].append(found)
                    what = REUSE if reuse else "without"
                    say(f"exchange_reuse: {query}, turn {turn + 1}, {what}: {_median(found):.0f} ms")
            _report(row, query, sides[False], sides[True])
    return row


def _report(row: Row, query: str, without: Side, reusing: Side) -> None:
    row.add(
        f"{query}: a micro-batch (medians of the runs)",
        "ms",
        [_median(found) for found in without],
        (REUSE, [_median(found) for found in reusing]),
    )
    row.add(
        f"{query}: a micro-batch, all",
        "ms",
        [ms for found in without for ms in found["ms"][WARM:]],
        (REUSE, [ms for found in reusing for ms in found["ms"][WARM:]]),
    )
    row.add(
        f"{query}: exchanges in the plan, those that are reused left out",
        "",
        [found["exchanges"] for found in without],
        (REUSE, [found["exchanges"] for found in reusing]),
    )
    row.add(
        f"{query}: rows written",
        "",
        [found["written"] for found in without],
        (REUSE, [found["written"] for found in reusing]),
    )


def _median(found: dict[str, Any]) -> float:
    times = sorted(found["ms"][WARM:])
    return float((times[len(times) // 2] + times[(len(times) - 1) // 2]) / 2)


async def _asked(process: SparkProcess, **request: Any) -> dict[str, Any]:
    process.tell(json.dumps(request).encode())
    return await process.answer()


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
