"""The reading end of an exchange: a streaming source whose offset is the sequence number of the next entry (J8).

It is a Java `Source` with its methods implemented here, in the session child, where the gate is. None of them runs in
another process, and rows never pass through Python. `SupportsAdmissionControl` makes Spark pass its current offset when
it asks how far it may read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.exchange.channels import TaskChannels, no_channels
from minflinkd.taskmanager.session.exchange.writing import as_read, stored_schema
from minflinkd.taskmanager.session.spark.failures import BatchFailed
from minflinkd.taskmanager.session.spark.session import Session

# A job may set these for its own files. Here no file may be skipped, and a path is taken literally.
_NOTHING_IS_SKIPPED = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "__globPaths__": "false"}
_RUNTIME = "org.apache.spark.sql.execution.streaming.runtime"


class ExchangeSource:
    """Belongs to one attempt, or to a plan that is only analysed. Call `release` when done.

    Method names are those of Spark's interfaces. Each call comes on the Python thread of the query's JVM thread.
    """

    def __init__(self, session: Session, spark: SparkSession, vertex: VertexId, schema: StructType) -> None:
        self._session = session
        self._spark = spark
        self._vertex = vertex
        self._written = schema
        self._schema = spark._jsparkSession.parseDataType(schema.json()).asNullable()  # as files are read
        self._channels = no_channels()
        self._called: Callable[[], None] = lambda: None
        self._failed: Callable[[Exception], None] = lambda _: None
        self._answer: JavaObject | None = None  # what the last call returned

    def bind(self, channels: TaskChannels, called: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        """Connect the source to an attempt, before the query starts.

        `called` is called first when Spark asks how far it may read, `failed` before an error is raised to Spark.
        """
        self._channels, self._called, self._failed = channels, called, failed

    def frame(self) -> DataFrame:
        """Return a streaming DataFrame of the exchange. Call it once: to Spark, each call makes another source."""
        unnamed = getattr(getattr(self._jvm.org.apache.spark.sql.catalyst.streaming, "Unassigned$"), "MODULE$")
        relation = self._java(f"{_RUNTIME}.StreamingExecutionRelation")(
            self, self._attributes(), self._none, unnamed, self._spark._jsparkSession
        )
        return DataFrame(self._of_plan(relation), self._spark)

    def release(self) -> None:
        """Let py4j forget the source, once Spark no longer calls it. Idempotent."""
        pool = self._session.gateway.gateway_property.pool
        with pool.lock:
            for key in [key for key, proxy in pool.dict.items() if proxy is self]:
                del pool.dict[key]

    # --- Spark's interfaces --------------------------------------------------------------------------------------

    def schema(self) -> JavaObject:
        return self._schema

    def initialOffset(self) -> JavaObject:  # noqa: N802
        return self._kept(self._offset(self._channels.no_positions.get(self._vertex, 0)))

    def getDefaultReadLimit(self) -> JavaObject:  # noqa: N802
        return self._kept(self._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable())

    def reportLatestOffset(self) -> None:  # noqa: N802
        """Not reported: it cannot be told apart from how far Spark may read."""

    def latestOffset(self, start: JavaObject | None, limit: JavaObject) -> JavaObject:  # noqa: N802
        self._called()
        return self._attempt(lambda: self._offset(self._channels.readable(self._vertex, _position(start))))

    def getBatch(self, start: JavaObject, end: JavaObject) -> JavaObject:  # noqa: N802
        """Return the rows between two offsets.

        In a restored query, Spark first asks for the last micro-batch, but does not read it.
        """
        return self._attempt(lambda: self._batch(start.get() if start.isDefined() else None, end))

    def deserializeOffset(self, text: str) -> JavaObject:  # noqa: N802
        return self._kept(self._offset(json.loads(text)["position"]))

    def commit(self, end: JavaObject) -> None:
        """Do nothing: the task reported what it consumed when its micro-batch was published."""

    def stop(self) -> None:
        """Do nothing: whoever stops the query releases the source."""

    def toString(self) -> str:  # noqa: N802
        return f"exchange {self._vertex} {id(self):x}"

    def hashCode(self) -> int:  # noqa: N802
        return hash(id(self)) & 0x7FFFFFFF

    def equals(self, other: JavaObject) -> bool:
        """Return False: Java asks only about objects that are not the same."""
        return False

    class Java:
        implements = (
            "org.apache.spark.sql.execution.streaming.Source",
            "org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl",
        )

    # -------------------------------------------------------------------------------------------------------------

    def _batch(self, start: JavaObject | None, end: JavaObject) -> JavaObject:
        until = _position(end)
        assert until is not None
        files = self._channels.data_files(self._vertex, _position(start), until)
        if not files:
            nothing = self._jvm.PythonUtils.toSeq([])
            relation = self._jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation
            return self._of_plan(relation(self._attributes(), nothing, True, self._none))
        reader = self._spark.read.schema(stored_schema(self._written)).options(**_NOTHING_IS_SKIPPED)
        stored = reader.parquet(*(f"file://{file}" for file in files))
        # Spark requires that the plan of a source's rows is marked as streaming, and the plan of a file read is not.
        read = stored._jdf.queryExecution().analyzed()
        streamed = read.copy(read.relation(), read.output(), self._none, True, self._none)
        return as_read(DataFrame(self._of_plan(streamed), self._spark), self._written)._jdf

    def _attempt(self, action: Callable[[], JavaObject]) -> JavaObject:
        """Run an action, and raise only a short error from it.

        py4j sends the whole traceback, and Spark's regular expressions overflow the stack over a long one.
        """
        try:
            return self._kept(action())
        except Exception as error:
            self._failed(error)
            failure = BatchFailed(f"exchange {self._vertex}: {type(error).__name__}")
        raise failure

    def _kept(self, answer: JavaObject) -> JavaObject:
        """Keep an answer until the next call.

        When Python garbage-collects it, py4j makes Java release it too, perhaps before the answer has arrived.
        """
        self._answer = answer
        return answer

    def _attributes(self) -> JavaObject:
        return self._jvm.org.apache.spark.sql.catalyst.types.DataTypeUtils.toAttributes(self._schema)

    def _offset(self, position: int) -> JavaObject:
        return self._java(f"{_RUNTIME}.SerializedOffset")(json.dumps({"position": position}))

    def _of_plan(self, plan: JavaObject) -> JavaObject:
        return self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(self._spark._jsparkSession, plan)

    def _java(self, name: str) -> Any:
        found = self._jvm
        for part in name.split("."):
            found = getattr(found, part)
        return found

    @property
    def _none(self) -> JavaObject:
        return self._jvm.scala.Option.empty()

    @property
    def _jvm(self) -> Any:
        return self._session.jvm


def _position(offset: JavaObject | None) -> int | None:
    return None if offset is None else int(json.loads(offset.json())["position"])
