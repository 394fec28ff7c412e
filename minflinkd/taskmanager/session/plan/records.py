"""Reads and writes records of Kafka that have a schema in a Schema Registry (K10).

In place of its bytes, a key or a value is what they say, read with the job's own schema. The class `WireFormat` in Java
does it, record by record, as each carries the id of its writer's schema. A record that cannot be read is bad: the
vertex's `on-bad-record` decides, and without one the micro-batch fails. No record becomes null by that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace
from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from minflinkd.jobgraph.model import RecordFormat, Sink, Source, Vertex
from minflinkd.jobgraph.records import record_formats, subject_of
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session.plan import bad_records
from minflinkd.taskmanager.session.spark import schema_registry
from minflinkd.taskmanager.session.spark.failures import spark_message
from minflinkd.taskmanager.session.spark.frames import quoted
from minflinkd.taskmanager.session.spark.schema_registry import UnfitSchema
from minflinkd.taskmanager.session.spark.session import Session

if TYPE_CHECKING:
    from minflinkd.taskmanager.session.plan.plan import Encode, Plan

_READ: Final = "__read_"  # begin of a column beside those of Kafka, with what was read, or why it cannot be


def readable(session: Session, plan: Plan, vertex: Vertex, source: Source, frame: DataFrame) -> DataFrame:
    """Return the records of a source with their parts read. Notes in the plan which schemas it has found for that.

    Raises RegistryAway, RegistryRefused, UnfitSchema.
    """
    assert source.schema_registry is not None
    registry = schema_registry.connect(session, source.schema_registry)
    parts, found = record_formats(source), dict[str, Column]()
    for part, format in parts.items():
        schema = _registered(plan, vertex.id, source, part, format, registry).schema
        found[part] = _decoded(session, part, registry, str(schema)).alias(_READ + part)
    bad = F.coalesce(*[F.concat(F.lit(f"its {part}: "), F.col(f"{_READ}{part}.error")) for part in found])
    record = F.to_json(F.struct(*frame.columns), {"ignoreNullFields": "false"})
    place = F.concat("topic", F.lit("."), "partition", F.lit("@"), "offset")
    good = bad_records.kept(session, vertex, frame.select("*", *found.values()), bad, record, place)
    return good.select(*[F.col(f"{_READ}{name}.read").alias(name) if name in found else name for name in frame.columns])


def encoder(session: Session, plan: Plan, vertex: Vertex, sink: Sink, rows: DataFrame) -> Encode:
    """Return what writes the parts of a sink's rows as the records that others read with the registry.

    Notes in the plan which schemas it has found for that. Raises RegistryAway, RegistryRefused, UnfitSchema.
    """
    assert sink.schema_registry is not None
    registry, encoded = schema_registry.connect(session, sink.schema_registry), dict[str, Column]()
    for part, format in record_formats(sink).items():
        if part not in rows.columns:
            raise UnfitSchema(f"the sink gets no column {part}", hint=f"SELECT struct(...) AS {part}, ...")
        known = _registered(plan, vertex.id, sink, part, format, registry)
        encoded[part] = _encoded(session, part, known, rows)
    return lambda frame: frame.select(*[encoded.get(name, F.col(quoted(name))).alias(name) for name in frame.columns])


def _registered(
    plan: Plan, vertex: VertexId, end: Source | Sink, part: str, format: RecordFormat, registry: Any
) -> RecordFormat:
    """Return a format with its schema, which the registry is asked for unless the job has it already."""
    if format.schema is not None:
        return format
    subject = subject_of(part, format, end)
    if subject is None:  # by params that `jobgraph.records` has not seen
        raise UnfitSchema(f"the {part} has no subject, as there is no single topic", hint="subject: <name>")
    version = schema_registry.version_of(registry, subject, format.version)
    reads = isinstance(end, Source)
    known = replace(format, schema=version.schema, id=None if reads else version.id, version=None)
    plan.record_formats.setdefault(vertex, {})[part] = known
    does = "reads" if reads else "writes"
    plan.notes.append(f"{vertex} {does} each {part} with version {version.number} of {subject}")
    return known


def _encoded(session: Session, part: str, format: RecordFormat, rows: DataFrame) -> Column:
    jvm = session.jvm
    kind = jvm.org.apache.spark.sql.types.DataType.fromJson(rows.schema[part].dataType.json())
    try:
        made = jvm.org.minflinkd.WireEncoder(format.schema, format.id, kind)
    except Py4JJavaError as error:
        hint = f"make {part} as the schema has it, such as: named_struct('user', user, 'url', url) AS {part}"
        problem = f"the column {part} does not fit its schema in the registry: {_causes(error)}"
        raise UnfitSchema(problem, hint=hint) from None
    one = F.struct(F.col(part))  # a value of any type in one form
    return _invoked(session, made, "encode", jvm.org.apache.spark.sql.types.DataTypes.BinaryType, one, same=True)


def _causes(error: Py4JJavaError) -> str:
    """Return Spark's message with its causes: the first one only names both types."""
    texts, cause = list[str](), error.java_exception
    while cause is not None and len(texts) < 5:
        texts.append(str(cause.getMessage()).strip().splitlines()[0])
        cause = cause.getCause()
    return ": ".join(dict.fromkeys(texts))[:1000]


def _decoded(session: Session, part: str, registry: Any, schema: str) -> Column:
    """Return a column of two fields: `error`, null for a good record, and `read`. Both are null if the bytes are."""
    jvm = session.jvm
    decoder = jvm.org.minflinkd.WireFormat(registry, schema)
    try:
        kind = decoder.columnType()
    except Py4JJavaError as error:
        hint = "name another version or schema, with types that Spark has: no type may contain itself"
        raise UnfitSchema(f"Spark cannot read a {part} with its schema: {spark_message(error)}", hint=hint) from None
    # Not the same each time, for Spark: it would decode for the filter of bad records, and again for what is read.
    return _invoked(session, decoder, "decode", kind, F.col(part), same=False)


def _invoked(session: Session, target: Any, method: str, kind: Any, argument: Column, *, same: bool) -> Column:
    """Return a column that a method of a Java object makes from another one. `kind`: its type, in Java."""
    jvm = session.jvm
    expressions, support = jvm.org.apache.spark.sql.catalyst.expressions, jvm.org.apache.spark.sql.classic
    on = expressions.Literal.fromObject(target, jvm.org.apache.spark.sql.types.ObjectType(target.getClass()))
    given = jvm.PythonUtils.toSeq([support.ExpressionUtils.expression(argument._jc)])
    call = expressions.objects.Invoke(on, method, kind, given, jvm.PythonUtils.toSeq([]), True, True, same)
    return Column(support.ExpressionUtils.column(call))
