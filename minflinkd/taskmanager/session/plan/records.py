"""Reads the records of a Kafka source that are written with a Schema Registry (K10).

In place of its bytes, a key or a value is what they say, read with the job's own schema. The class `WireFormat` in Java
does it, record by record, as each carries the id of its writer's schema. A record that cannot be read is bad: the
vertex's `on-bad-record` decides, and without one the micro-batch fails. No record becomes null by that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from minflinkd.jobgraph.model import RecordFormat, Source, Vertex
from minflinkd.jobgraph.records import record_formats, subject_of
from minflinkd.taskmanager.session.plan import bad_records
from minflinkd.taskmanager.session.spark import schema_registry
from minflinkd.taskmanager.session.spark.failures import spark_message
from minflinkd.taskmanager.session.spark.schema_registry import UnfitSchema
from minflinkd.taskmanager.session.spark.session import Session

if TYPE_CHECKING:
    from minflinkd.taskmanager.session.plan.plan import Plan

_READ: Final = "__read_"  # begin of a column beside those of Kafka, with what was read, or why it cannot be


def readable(session: Session, plan: Plan, vertex: Vertex, source: Source, frame: DataFrame) -> DataFrame:
    """Return the records of a source with their parts read. Notes in the plan which schemas it has found for that.

    Raises RegistryAway, RegistryRefused, UnfitSchema.
    """
    assert source.schema_registry is not None
    registry = schema_registry.connect(session, source.schema_registry)
    parts, found = record_formats(source), dict[str, Column]()
    for part, format in parts.items():
        if (schema := format.schema) is None:
            schema = _registered(plan, vertex, source, part, format, registry)
            plan.record_schemas.setdefault(vertex.id, {})[part] = schema
        found[part] = _decoded(session, part, registry, schema).alias(_READ + part)
    bad = F.coalesce(*[F.concat(F.lit(f"its {part}: "), F.col(f"{_READ}{part}.error")) for part in found])
    record = F.to_json(F.struct(*frame.columns), {"ignoreNullFields": "false"})
    place = F.concat("topic", F.lit("."), "partition", F.lit("@"), "offset")
    good = bad_records.kept(session, vertex, frame.select("*", *found.values()), bad, record, place)
    return good.select(*[F.col(f"{_READ}{name}.read").alias(name) if name in found else name for name in frame.columns])


def _registered(plan: Plan, vertex: Vertex, source: Source, part: str, format: RecordFormat, registry: Any) -> str:
    subject = subject_of(part, format, source)
    if subject is None:  # by params that `jobgraph.records` has not seen
        raise UnfitSchema(f"the {part} has no subject: the source reads from several topics", hint="subject: <name>")
    version = schema_registry.version_of(registry, subject, format.version)
    plan.notes.append(f"{vertex.id} reads each {part} with version {version.number} of {subject}")
    return version.schema


def _decoded(session: Session, part: str, registry: Any, schema: str) -> Column:
    """Return a column of two fields: `error`, null for a good record, and `read`. Both are null if the bytes are."""
    jvm = session.jvm
    decoder = jvm.org.minflinkd.WireFormat(registry, schema)
    try:
        kind = decoder.columnType()
    except Py4JJavaError as error:
        hint = "name another version or schema, with types that Spark has: no type may contain itself"
        raise UnfitSchema(f"Spark cannot read a {part} with its schema: {spark_message(error)}", hint=hint) from None
    expressions, support = jvm.org.apache.spark.sql.catalyst.expressions, jvm.org.apache.spark.sql.classic
    target = expressions.Literal.fromObject(decoder, jvm.org.apache.spark.sql.types.ObjectType(decoder.getClass()))
    given = [support.ExpressionUtils.expression(F.col(part)._jc)]
    none, some = jvm.PythonUtils.toSeq([]), jvm.PythonUtils.toSeq(given)
    # Not deterministic for Spark: it would decode once for the filter of bad records, and again for what is read.
    call = expressions.objects.Invoke(target, "decode", kind, some, none, True, True, False)
    return Column(support.ExpressionUtils.column(call))
