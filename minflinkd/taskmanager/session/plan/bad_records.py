"""Takes bad records out of a vertex's rows (K7): those that its source cannot parse, or that the vertex itself rejects.

The vertex is left with its good rows, by a filter that is the class `BadRecords` in Java. Asked about a bad row, that
writes the row to a file of the micro-batch. So a good row costs a comparison with null, and nothing is read twice.
`sinks.bad_records` collects the files.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it
from pyspark.sql.classic.column import _to_java_column, _to_seq
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StringType, StructType

from minflinkd.jobgraph.bad_records import COLUMNS, CORRUPT, ERROR, bad_record_sink
from minflinkd.jobgraph.delivery import LARGEST, LARGEST_RECORD
from minflinkd.jobgraph.model import OnBadRecord, Sink, Source, Vertex
from minflinkd.runtime.errors import MinflinkError
from minflinkd.taskmanager.session.spark.frames import column as spark_column
from minflinkd.taskmanager.session.spark.session import Session

_COLUMNS: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
_TEXTS: Final = {name for name, kind in COLUMNS.items() if kind == "string"}
_LONGEST: Final = 2**31 - 1  # characters of a text in JSON; Jackson's own limit is 20 million
_BESIDE: Final = 4_096  # bytes of a record of Kafka beside its value, and to spare
_WIDEST: Final = 16  # bytes of a character of a record in JSON, where it may be escaped twice, and one of its error


class NoErrorColumn(MinflinkError):
    """A vertex lacks the column that says which rows are bad, or a source has the one that Spark's parser adds."""

    code = "no-error-column"


def reader(spark: SparkSession, source: Source) -> DataStreamReader:
    """Return the reader of a source that keeps the text of what it cannot parse."""
    assert source.schema is not None
    schema = StructType.fromDDL(source.schema)
    assert isinstance(schema, StructType)
    if CORRUPT in schema.names:
        raise NoErrorColumn(f"the schema has a column {CORRUPT}, and on-bad-record adds it", hint="leave it out")
    options = {**source.options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    return spark.readStream.format(source.format).options(**options).schema(schema.add(CORRUPT, StringType()))


def good_rows(session: Session, vertex: Vertex, frame: DataFrame) -> DataFrame:
    """Return the good rows of a vertex that has `on-bad-record`. Raises NoErrorColumn, and what Spark refuses."""
    source = vertex.source if vertex.source is not None and vertex.source.python is None else None
    column = ERROR if source is None else CORRUPT
    if column not in frame.columns or not isinstance(frame.schema[column].dataType, StringType):
        raise NoErrorColumn(
            f"on-bad-record needs a column {column} of the type STRING: why a row is bad, null for a good one",
            hint=f"such as: CASE WHEN price < 0 THEN 'the price is negative' END AS {column}",
        )
    bad = F.col(column)
    others = F.struct(*[spark_column(name) for name in frame.columns if name != column])
    rows = F.to_json(others, {"ignoreNullFields": "false"})
    # Of a source, the record itself. The columns stand there as well, or Spark would leave out of the parser which of
    # them nobody reads, and would not notice that they are wrong.
    record = rows if source is None else F.coalesce(bad, rows)
    place = F.lit(None).cast("string") if source is None else F.col("_metadata.file_path")
    parser = None if source is None else _parser(session, frame.sparkSession, source)
    return kept(session, vertex, frame, bad, record, place, parser).drop(column)


def kept(
    session: Session, vertex: Vertex, frame: DataFrame, bad: Column, record: Column, place: Column, parser: Any = None
) -> DataFrame:
    """Return the good rows of a frame. Without `on-bad-record`, a bad one fails the micro-batch.

    `bad`: what is wrong with a row, null for a good one. `record`, `place`: its text, and where it is from. `parser`:
    see `BadRecords.java`.
    """
    taken = _filter(session, vertex, parser)
    # Nothing here may differ from one micro-batch to the next: Spark would compile the query's code each time.
    arguments = (bad, *(F.when(bad.isNotNull(), value) for value in (record, place)))
    return frame.where(bad.isNull() | taken(*arguments))


def no_rows(spark: SparkSession, sink: Sink) -> DataFrame:
    """Return what a sink of bad records gets, without rows: to check the sink with."""
    return _for_sink(spark.createDataFrame([], _COLUMNS), sink)


def read_rows(spark: SparkSession, directories: list[str], began_ms: int, sink: Sink) -> DataFrame:
    """Return the bad records in these directories as rows for a sink. `began_ms`: when their micro-batch began."""
    reader = spark.read.schema(_COLUMNS).option("mode", "FAILFAST").option("maxStringLen", _LONGEST)
    found = reader.json([f"file://{directory}" for directory in directories])
    return _for_sink(found.withColumn("time", F.timestamp_millis(F.lit(began_ms))), sink)


def _for_sink(rows: DataFrame, sink: Sink) -> DataFrame:
    """Fit bad records to a sink. Kafka's records and lines of text are one text each, in JSON."""
    if sink.format == "jdbc":  # PostgreSQL's texts have no NUL
        return rows.select(
            *[F.translate(name, "\0", "\ufffd").alias(name) if name in _TEXTS else name for name in COLUMNS]
        )
    if sink.format == "text":
        return rows.select(_as_json().alias("value"))
    if sink.format == "kafka":  # it refuses what is too large, and the job would fail for ever
        most = int(sink.options.get(LARGEST, LARGEST_RECORD)) - _BESIDE
        some = most // _WIDEST
        told = F.concat(F.lit(f"(cut to {some:,} characters) "), F.substring("error", 1, some))
        cut = _as_json(error=told, record=F.substring("record", 1, some))
        text = F.when(F.octet_length(_as_json()) > most, cut).otherwise(_as_json())
        return rows.select(F.col("vertex").alias("key"), text.alias("value"))
    return rows


def _as_json(**changed: Column) -> Column:
    columns = (changed.get(name, F.col(name)).alias(name) for name in COLUMNS)
    return F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})


def _filter(session: Session, vertex: Vertex, parser: Any) -> Any:
    """Return a function of columns: the filter of a vertex, which is not to be moved or repeated."""
    action = "keep" if bad_record_sink(vertex) is not None else str(vertex.on_bad_record or OnBadRecord.FAIL)
    function = session.jvm.org.minflinkd.BadRecords.filter(vertex.id, action, parser)
    context = session.spark.sparkContext
    return lambda *columns: Column(function.apply(_to_seq(context, columns, _to_java_column)))


def _parser(session: Session, spark: SparkSession, source: Source) -> Any:
    """Return what says what is wrong with a record: Spark's parser for single texts, in its strict mode."""
    expressions, option = session.jvm.org.apache.spark.sql.catalyst.expressions, session.jvm.scala.Option
    types = session.jvm.org.apache.spark.sql.types.StructType
    options = session.jvm.PythonUtils.toScalaMap({**source.options, "mode": "FAILFAST"})
    schema, zone = types.fromDDL(source.schema), option.apply(spark.conf.get("spark.sql.session.timeZone"))
    if source.format == "json":
        return expressions.json.JsonToStructsEvaluator(options, schema, CORRUPT, zone, False)
    return expressions.csv.CsvToStructsEvaluator(options, schema, CORRUPT, zone, option.empty())
