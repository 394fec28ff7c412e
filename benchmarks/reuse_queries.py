"""The process of `exchange_reuse.py`: runs one streaming query after another in a session like a TaskManager's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

_WINDOWS = """
SELECT window(time, '1 minute') AS minute, k, v % 100 AS part, count(*) AS n, sum(v) AS total
FROM events GROUP BY window(time, '1 minute'), k, v % 100
"""
# Each query uses the same columns of both copies. Otherwise Spark leaves out columns, and the exchanges differ.
QUERIES = {
    "self-join": f"""
WITH sums AS ({_WINDOWS})
SELECT a.minute.start AS minute, a.k, a.n, a.total, b.n AS other_n, b.total AS other_total FROM sums a JOIN sums b
ON a.minute = b.minute AND a.k = b.k AND a.part = b.part
""",
    "union": f"""
WITH sums AS ({_WINDOWS})
SELECT minute.start AS minute, k, part, n, total FROM sums UNION ALL SELECT minute.start, k, part, total, n FROM sums
""",
    "table": """
SELECT e.k, e.v, one.name AS name, one.next AS next, other.name AS other, other.next AS other_next FROM events e
JOIN names one ON e.v = one.id JOIN names other ON e.v + 1 = other.id
""",
}
_REUSE = "spark.sql.exchange.reuse"


def _session(base: Path, partitions: int) -> Any:
    from minflinkd.taskmanager.child.protocol import SessionConfig
    from minflinkd.taskmanager.session.spark import session as spark

    session = spark.launch(
        SessionConfig(
            name="exchange-reuse",
            slots=partitions,
            working_directory=str(base / "work"),
            log_directory=str(base / "log"),
            heap_bytes=1024**3,
            warm_up=False,
        )
    )
    return session.spark


def _run(spark: Any, base: Path, events: str, query: str, *, reuse: bool, files: int) -> dict[str, Any]:
    """Run a query until all files are read. Returns milliseconds for each micro-batch with rows."""
    own = spark.newSession()
    own.conf.set(_REUSE, str(reuse).lower())
    own.conf.set("spark.sql.shuffle.partitions", spark.conf.get("spark.sql.shuffle.partitions"))
    own.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    own.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(4 * files))
    source = own.readStream.schema("k STRING, time TIMESTAMP, v BIGINT").option("maxFilesPerTrigger", 1).json(events)
    source.withWatermark("time", "1 minute").createOrReplaceTempView("events")
    own.read.parquet(str(base / "names")).createOrReplaceTempView("names")
    writer = own.sql(QUERIES[query]).writeStream.format("noop").outputMode("append")
    running = writer.option("checkpointLocation", str(base / "checkpoints" / uuid4().hex)).start()
    running.processAllAvailable()
    execution = running._jsq.streamingQuery().lastExecution().executedPlan()
    lines = execution.toString().splitlines()
    exchanges = sum("Exchange " in line and "ReusedExchange" not in line for line in lines)
    told = running.recentProgress
    running.stop()
    return {
        "ms": [progress["durationMs"]["triggerExecution"] for progress in told if progress["numInputRows"]],
        "exchanges": exchanges,
        "written": sum(max(0, progress["sink"]["numOutputRows"]) for progress in told),
    }


def main() -> None:
    given = json.loads(sys.argv[1])
    base = Path(given["base"])
    spark = _session(base, given["partitions"])
    rows = spark.range(given["rows"])
    names = rows.selectExpr("id", "concat('name ', id) AS name", f"(id * 7 + 1) % {given['rows']} AS next")
    names.write.parquet(str(base / "names"))
    for line in sys.stdin:
        print(json.dumps(_run(spark, base, given["events"], **json.loads(line))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
