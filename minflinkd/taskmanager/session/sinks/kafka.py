"""Writes rows to Kafka exactly once: staged in the checkpoint, then published in a transaction with a mark (K1).

A micro-batch is staged as Parquet files below the attempt's directory. They become part of each snapshot that covers
them, so a restored attempt has them again. When the checkpoint is complete, one transaction writes their rows and the
mark (`marks`), an offset of a consumer group of the sink's own. So rows and mark are there together, or neither.

Two attempts may publish at the same time, if one only seems dead. A producer that opens fences the other one and aborts
what it has left open. Only then is the mark read. Whoever is fenced opens again, reads the mark, and finds the rows
published.

A transaction cannot stay open until the checkpoint is complete: the broker aborts it after a time, and whenever its
producer opens again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
import pyarrow
import pyarrow.parquet
import structlog
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from minflinkd.jobgraph.delivery import LARGEST, LARGEST_RECORD, LOST_MARK, PUBLISH, SKIP
from minflinkd.jobgraph.model import Sink
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import AttemptId, JobId, VertexId
from minflinkd.taskmanager.session.plan.sink_checks import HEADERS
from minflinkd.taskmanager.session.sinks.batch import HeldInSnapshots, ReadsOnce
from minflinkd.taskmanager.session.sinks.held import HeldFiles
from minflinkd.taskmanager.session.sinks.marks import Mark, Part, latest, missing, transactions
from minflinkd.taskmanager.session.spark import java_classes, local_files
from minflinkd.taskmanager.session.spark.failures import hidden
from minflinkd.taskmanager.session.spark.local_parquet import with_rows
from minflinkd.taskmanager.session.spark.session import Session

log = structlog.get_logger(__name__)

MOST_ROWS: Final = 100_000  # of a transaction; a checkpoint with more of them is published in several
_PUBLISHER: Final = "kafka/KafkaPublisher.java"
_PREFIX: Final = "kafka."
# Another producer has opened with the same id; or, the last, the broker has forgotten the id.
_FENCED: Final = frozenset({"ProducerFencedException", "InvalidProducerEpochException", "InvalidPidMappingException"})
_BATCH: Final = 8_192  # rows that are read into memory at a time
_TIMEOUT: Final = 10.0  # seconds, to read the marks
# A task that is stopped must not wait for brokers that are away for longer than task.cancellation.timeout. In ms.
_BLOCKS: Final = {"max.block.ms": "10000"}
_DELIVERS: Final = {"request.timeout.ms": "8000", "delivery.timeout.ms": "15000"}
_OVERHEAD: Final = 1_024  # bytes of a request beside key and value; headers are small


class PublishingFailed(MinflinkError):
    """Kafka did not take a transaction. The message is its client's. The rows stay staged, and it is tried again."""

    code = "sink-kafka"
    consequence = Consequence.RETRYABLE


class MarkLost(MinflinkError):
    """Kafka does not have the mark that says which rows are published."""

    code = "sink-mark-lost"
    consequence = Consequence.FATAL


class Staged(msgspec.Struct, frozen=True):
    """The token of a micro-batch. `files`: pairs of a name and its rows, in order. `id` is that of no other token.

    `mark` is the number of the latest mark that was known when the rows were staged; 0: none.
    """

    job: str
    id: str
    files: tuple[tuple[str, int], ...]
    mark: int = 0

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.files)


class StagedRecords(HeldInSnapshots, ReadsOnce):
    """Two-phase: the records wait in the attempt's directory until the checkpoint that covers them is complete."""

    def __init__(
        self,
        session: Session,
        sink: Sink,
        job_id: JobId,
        vertex_id: VertexId,
        attempt_id: AttemptId,
        directory: str,
        encode: Callable[[DataFrame], DataFrame],
    ) -> None:
        """`encode`: makes keys and values of records from the rows."""
        self._encode = encode
        self._session = session
        self._options = sink.options
        self._job_id, self._sink, self._attempt_id = job_id, vertex_id, attempt_id
        self._largest = int(sink.options.get(LARGEST, LARGEST_RECORD)) - _OVERHEAD
        self._held = HeldFiles(directory, vertex_id)
        self._publisher: _Publisher | None = None
        self._mark = 0  # number of the latest mark of this job

    def stage(self, batch: DataFrame, epoch: int) -> Any:
        files = []
        target = self._held.own / f".{epoch}-{uuid4().hex}"
        records = as_records(self._encode(batch), self._options.get("topic"), self._largest)
        records.write.options(**local_files.RAW).mode("error").parquet(f"file://{target}")
        for file, rows in with_rows(sorted(target.glob("*.parquet"))):
            files.append((self._held.take(file), rows))
        _remove(target)
        if not files:
            return None
        name = f"{self._attempt_id}-{epoch}-{uuid4().hex[:8]}"
        token = Staged(job=self._job_id, id=name, files=tuple(files), mark=self._mark)
        return msgspec.to_builtins(token)

    def count(self, token: Any) -> int:
        return _staged(token).rows

    def files(self, token: Any) -> tuple[str, ...]:
        """Return the paths, below the attempt's directory and in a snapshot, of the files that hold a token's rows."""
        return tuple(self._held.path(name) for name, _ in _staged(token).files)

    def commit(self, checkpoint_id: int, tokens: list[Any]) -> None:
        """Publish the rows that are not published yet. Raises PublishingFailed, MarkLost, StagedRowsGone."""
        found = [_staged(token) for token in tokens]
        for job_id in dict.fromkeys(token.job for token in found):  # those of a savepoint of another job come first
            self._publish(job_id, checkpoint_id, [token for token in found if token.job == job_id])
        self._discard(found)

    def abort(self, tokens: list[Any] | None) -> None:
        """Discard what was staged. Earlier attempts had directories of their own, which go with them."""
        self._discard([_staged(token) for token in tokens or ()])
        if tokens is None:  # everything that was restored is published
            self._held.discard_restored()

    def interrupt(self) -> None:
        """End a commit that another thread is waiting for."""
        if (publisher := self._publisher) is not None:
            publisher.close()

    def close(self) -> None:
        self._close_publisher()

    def _publish(self, job_id: str, checkpoint_id: int, tokens: Sequence[Staged]) -> None:
        name = f"minflinkd.{job_id}.{self._sink}"
        try:
            try:
                self._publish_as(name, checkpoint_id, tokens)
            except Py4JJavaError as error:
                if not _is_fenced(error):
                    raise
                log.info("another attempt has published", sink=self._sink, checkpoint=checkpoint_id)
                self._close_publisher()
                self._publish_as(name, checkpoint_id, tokens)
        except BaseException as error:
            self._close_publisher()  # the next one reads the mark, and knows whether the transaction was committed
            if isinstance(error, Py4JJavaError):
                hint = "the rows stay staged, and it is tried again; are the brokers up, and may this user write?"
                said = f"Kafka did not take the rows of sink {self._sink}: {_said(error)}"
                raise PublishingFailed(said, hint=hint) from error
            raise

    def _publish_as(self, name: str, checkpoint_id: int, tokens: Sequence[Staged]) -> None:
        if self._publisher is None or self._publisher.name != name:
            self._close_publisher()
            self._held.own.mkdir(parents=True, exist_ok=True)
            self._publisher = _Publisher(self._new_producer(name), name, self._held.own, self._options.get("topic"))
        publisher = self._publisher
        known = max((token.mark for token in tokens), default=0)
        if known > publisher.number and self._is_to_skip(name):
            return
        publisher.number = max(known, publisher.number)
        parts = missing(publisher.mark, checkpoint_id, [(token.id, token.rows) for token in tokens])
        by_id = {token.id: token for token in tokens}
        for transaction in transactions(parts, MOST_ROWS):
            publisher.publish(checkpoint_id, transaction, lambda part: self._batches(by_id[part.token], part))
        if all(token.job == self._job_id for token in tokens):
            self._mark = publisher.number

    def _is_to_skip(self, name: str) -> bool:
        """Whether rows count as published whose mark is lost. Raises MarkLost if the job does not say it."""
        if (choice := self._options.get(LOST_MARK)) in (SKIP, PUBLISH):
            log.warning("the mark of a sink is lost", sink=self._sink, group=name, choice=choice)
            return choice == SKIP
        raise MarkLost(
            f"the consumer group {name} has lost its offsets, which say what sink {self._sink} has published: they "
            "were deleted, with the group or its topic, or they have expired",
            hint="are the rows of the last checkpoint in the topic? Then start the job with the option "
            f"{LOST_MARK}: {SKIP} of this sink; if they are missing, with {LOST_MARK}: {PUBLISH}",
        )

    def _new_producer(self, name: str) -> Any:
        settings = self._session.jvm.java.util.HashMap()
        for key, value in client_settings(self._options).items():
            settings.put(key, value)
        return java_classes.make(self._session.spark, _PUBLISHER, settings, name, round(_TIMEOUT * 1000))

    def _batches(self, token: Staged, part: Part) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of a part, in order."""
        skip, left = part.skip, part.rows
        for name, rows in token.files:
            if skip >= rows:
                skip -= rows
                continue
            with pyarrow.parquet.ParquetFile(self._held.find(name)) as file:
                for batch in file.iter_batches(_BATCH):
                    piece = batch.slice(min(skip, len(batch)), left)
                    skip = max(0, skip - len(batch))
                    left -= len(piece)
                    if len(piece):
                        yield piece
            if not left:
                return

    def _discard(self, tokens: Sequence[Staged]) -> None:
        self._held.discard(name for token in tokens for name, _ in token.files)

    def _close_publisher(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None


class _Publisher:
    """A producer that nobody else has open, and the mark of what is published."""

    def __init__(self, producer: Any, name: str, directory: Path, topic: str | None) -> None:
        """`directory`: for rows on their way to the JVM. `topic`: of all rows."""
        self.name = name
        self._java = producer
        self._directory = directory
        try:
            self.mark = self._latest(topic)
            self.number = 0 if self.mark is None else self.mark.number  # of the latest mark that anybody has known
        except BaseException:
            self.close()
            raise

    def _latest(self, topic: str | None) -> Mark | None:
        found = str(self._java.marks(topic)).splitlines()
        try:
            return latest(found)
        except msgspec.DecodeError as error:
            raise MarkLost(
                f"the consumer group {self.name} has an offset that is none of the sink's: somebody consumes with this "
                f"group, or has set its offsets ({error})",
                hint="only the sink may use this group: put its offset back, or delete the group and read the error "
                "that follows",
            ) from error

    def publish(
        self, checkpoint_id: int, parts: Sequence[Part], batches: Callable[[Part], Iterable[pyarrow.RecordBatch]]
    ) -> None:
        """Publish the rows of `parts` and the mark that says so in one transaction."""
        topic = ""  # the mark may be in any topic that there is
        self._java.begin()
        for part in parts:
            for batch in batches(part):
                with tempfile.NamedTemporaryFile(dir=self._directory, suffix=".arrow") as file:
                    with pyarrow.ipc.new_stream(file, batch.schema) as writer:
                        writer.write_batch(batch)
                    file.flush()
                    topic = str(self._java.send(file.name))
        last = parts[-1]
        mark = Mark(number=self.number + 1, checkpoint=checkpoint_id, token=last.token, rows=last.skip + last.rows)
        reach(CrashPoint.SINK_SENT)
        self._java.commit(topic, checkpoint_id, mark.encode())
        reach(CrashPoint.SINK_WRITTEN)
        self.mark, self.number = mark, mark.number

    def close(self) -> None:
        try:
            self._java.close()
        except Py4JJavaError as error:
            log.info("a Kafka producer did not close", id=self.name, error=_said(error))


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Kafka's client: the options of a sink that begin with `kafka.`, and our limits.

    The client refuses a `delivery.timeout.ms` below `request.timeout.ms` and `linger.ms` together. So ours are left out
    if the job sets any of them.
    """
    given = {name[len(_PREFIX) :]: value for name, value in options.items() if name.startswith(_PREFIX)}
    delivers = {} if given.keys() & {*_DELIVERS, "linger.ms"} else _DELIVERS
    return {**_BLOCKS, **delivers, **given}


def as_records(rows: DataFrame, topic: str | None, largest: int) -> DataFrame:
    """Return the columns of Kafka's records, as Spark's own sink takes them. `topic`: for all rows.

    A row that Kafka would refuse, or that has more than `largest` bytes, fails its micro-batch before anything is
    staged. Found later, it would keep back all rows after it.
    """
    there = set(rows.columns)
    where = F.lit(topic) if topic else F.col("topic").cast("string")
    value = F.col("value").cast("binary")
    key = F.col("key").cast("binary") if "key" in there else F.lit(None).cast("binary")
    size = F.coalesce(F.length(key), F.lit(0)) + F.coalesce(F.length(value), F.lit(0))
    fault = F.when(where.isNull(), F.lit("a row for Kafka has no topic")).when(
        size > largest, F.lit(f"a row for Kafka has more than {largest} bytes (kafka.max.request.size)")
    )
    if "partition" in there:
        fault = fault.when(F.col("partition") < 0, F.lit("a row for Kafka has a negative partition"))
    if "headers" in there:
        nameless = F.exists("headers", lambda header: header.isNull() | header["key"].isNull())
        fault = fault.when(nameless, F.lit("a row for Kafka has a header without a key"))
    columns = [F.when(fault.isNotNull(), F.raise_error(fault)).otherwise(where).alias("topic"), value.alias("value")]
    columns += [key.alias("key")] if "key" in there else []
    columns += [F.col("headers").cast(HEADERS).alias("headers")] if "headers" in there else []
    columns += [F.col("partition").cast("int").alias("partition")] if "partition" in there else []
    return rows.select(*columns)


def _staged(token: Any) -> Staged:
    return msgspec.convert(token, Staged)


def _said(error: Py4JJavaError) -> str:
    """Return the client's own message. It may quote a setting, which may be a secret."""
    exception = _cause(error)
    return hidden(str(exception.getMessage() or exception.toString()))


def _is_fenced(error: Py4JJavaError) -> bool:
    """Whether a producer with the same id has opened since, or the broker has forgotten this one."""
    return str(_cause(error).getClass().getSimpleName()) in _FENCED


def _cause(error: Py4JJavaError) -> Any:
    """Return the first cause. Errors of records come wrapped, as those of another thread."""
    exception = error.java_exception
    while (cause := exception.getCause()) is not None:
        exception = cause
    return exception


def _remove(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()
