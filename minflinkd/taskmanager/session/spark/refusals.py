"""Explains what Spark refuses in the user's words: one sentence, and an example of what would be right. Pure.

If Spark's own sentence is good enough it stays, and only the example is added.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Refusal(NamedTuple):
    """Explains one message of Spark's.

    `problem`: "" keeps Spark's own sentence. `problem` and `hint` may name groups of the pattern, as `{name}`.
    """

    pattern: str
    problem: str
    hint: str


_IN_TIME = "ON a.key = b.key AND b.time BETWEEN a.time AND a.time + INTERVAL 1 HOUR"

REFUSALS = (
    # What Spark says only when it plans a micro-batch
    Refusal(
        r"Redefining watermark is disallowed",
        "this is a second watermark: the rows already have one from an earlier vertex",
        "keep only one of the two: there can be one watermark between a source and a sink",
    ),
    Refusal(
        r"Stream-stream join without equality predicate is not supported",
        "a join of two streams needs an equality between their columns, and this one has none",
        f"for example: {_IN_TIME}",
    ),
    Refusal(
        r"Streaming aggregation doesn't support group aggregate pandas UDF",
        "a pandas function that aggregates a group cannot be used on a stream",
        "use built-in aggregates, or groupBy(...).applyInPandasWithState(...), where your code keeps the state",
    ),
    Refusal(
        r"STATE_STORE_UNSUPPORTED_OPERATION_BINARY_INEQUALITY",
        "a text with a collation cannot be a key of state, as different texts may be equal in it",
        "use lower(name) without COLLATE: GROUP BY lower(name)",
    ),
    # What Spark refuses of a streaming query
    Refusal(
        r"applyInPandasWithState in \w+ mode is not supported (after|with) aggregation",
        "",
        "let the vertex begin a new Spark query: inputs: [{{id: ..., exchange: true}}]",
    ),
    Refusal(
        r"Distinct aggregations are not supported",
        "Spark cannot compute count(DISTINCT ...) and other DISTINCT aggregates on a stream",
        "use approx_count_distinct(x); or exactly: SELECT DISTINCT window(time, '1 minute') AS w, x FROM ... in an "
        "earlier vertex, and here SELECT w, count(*) AS n FROM ... GROUP BY w",
    ),
    Refusal(
        r"NON_TIME_WINDOW_NOT_SUPPORTED_IN_STREAMING\] Window function is not supported in (?P<name>\w+)",
        "{name}() OVER (...) needs all rows, and a stream has no end",
        "use aggregates in time windows: SELECT window(time, '1 hour') AS w, k, max_by(value, time) AS latest ... "
        "GROUP BY 1, 2; or dropDuplicates",
    ),
    Refusal(
        r"Sorting is not supported on streaming",
        "a stream cannot be sorted: it has no end",
        "leave out ORDER BY, and sort when you read the result",
    ),
    Refusal(
        r"INVALID_SUBQUERY_EXPRESSION\.STREAMING_QUERY",
        "a subquery in an expression (IN, EXISTS, a single value) cannot read a stream",
        f"use a join instead: FROM a LEFT SEMI JOIN b {_IN_TIME}",
    ),
    Refusal(
        r"Stream-stream (?P<kind>\w+) join between two streaming .* is not supported without a watermark",
        "a {kind} join of two streams has to know when a row can no longer find a partner, and here it cannot",
        f"give both inputs a watermark, and limit the join in time: {_IN_TIME}",
    ),
    Refusal(
        r"LeftAnti joins with a streaming .* on the right are not supported",
        "",
        f"use FROM a LEFT JOIN b {_IN_TIME} WHERE b.key IS NULL",
    ),
    Refusal(r"(Except|Intersect) (on|of) .*stream", "", f"for INTERSECT use LEFT SEMI JOIN: {_IN_TIME}"),
    Refusal(r"Sampling is not supported on streaming", "", "use WHERE rand() < 0.1"),
    Refusal(r"monotonically_increasing_id\(\) is not supported with streaming", "", "use uuid()"),
    Refusal(
        r"Multiple time/session window expressions would result in a cartesian product",
        "one SELECT has two different time windows",
        "use one window per vertex: put the second one into a vertex that reads this one",
    ),
    # What Spark cannot resolve
    Refusal(
        r"Invalid call to \w+ on unresolved object",
        "Spark cannot resolve an expression; often it is window(...).start in a place where only columns are allowed",
        "give it a name in an earlier vertex: SELECT *, window(time, '1 minute') AS w FROM ..., and use w.start here",
    ),
    Refusal(
        r"DATA_SOURCE_NOT_FOUND\] Failed to find the data source: (?P<name>[\w.$-]+?)\.?(\s|$)",
        "there is no source format {name} in this session",
        "formats: json, csv, parquet, orc, text, rate; for any other add its .jar as an artifact",
    ),
    Refusal(
        r"KAFKA_DATA_SOURCE_NOT_ENABLED",
        "Spark's Kafka connector is not installed, so the format kafka cannot be read",
        "add spark-sql-kafka-0-10 and its dependencies to the artifacts, or to spark.jars of TaskManagers",
    ),
    Refusal(
        r"Data source (?P<name>\S+) does not support streamed reading",
        "the format {name} cannot be read as a stream",
        "read it as a table in a python vertex, spark.read.format('{name}'), and join it",
    ),
    Refusal(
        r"PATH_NOT_FOUND\] Path does not exist: (?P<path>.*?)\.? (SQLSTATE|$)",
        "there is nothing at {path}",
        "create the directory before the job starts; it may be empty",
    ),
    Refusal(
        r"ClassNotFoundException: Class org\.apache\.hadoop\.fs\.(?P<name>\w+)",
        "Spark has no client for this kind of path ({name})",
        "use a directory that TaskManagers mount, or a path in HDFS; or add the client to spark.jars of TaskManagers",
    ),
)
_PATTERNS = [(re.compile(refusal.pattern, re.DOTALL), refusal) for refusal in REFUSALS]


def in_users_words(message: str) -> tuple[str, str]:
    """Return a problem and a hint for Spark's message. For an unknown message: the message itself, and ""."""
    for pattern, refusal in _PATTERNS:
        if (match := pattern.search(message)) is not None:
            names = match.groupdict()
            return refusal.problem.format(**names) or message, refusal.hint.format(**names)
    return message, ""
