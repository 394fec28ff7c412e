"""How many records of Kafka wait for a query: there are as many after what its micro-batches have processed (K9).

Spark says where a topic ends only when it plans a micro-batch, and of one that takes ten minutes, ten minutes later. So
the brokers are asked now and then, beside the query: where do the partitions end that it reads?
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from heapq import nlargest
from pathlib import Path
from typing import Any, Final

import structlog

from minflinkd.checkpoint.offsets import value
from minflinkd.jobgraph.model import Source
from minflinkd.rpc.messages import MOST_PARTS, PendingRecords
from minflinkd.rpc.plan_sources import source_lines, source_logs, source_names
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child.protocol import SnapshotFailed
from minflinkd.taskmanager.session.spark import java_classes
from minflinkd.taskmanager.session.spark.failures import hidden, spark_message
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state import snapshot

log = structlog.get_logger(__name__)

_LOOK: Final = 2.0  # seconds between two looks for where the query begins to read
_EVERY: Final = 10.0  # seconds between two questions
_TIMEOUT: Final = 5.0  # seconds for an answer
_CLASS: Final = "kafka/KafkaEnds.java"
_PREFIX: Final = "kafka."
# Settings of a consumer that do not fit a second client, or that bound a question in another way than we do.
_CONSUMERS_OWN: Final = frozenset(
    {
        *("client.id", "group.id", "group.instance.id", "interceptor.classes", "metric.reporters"),
        *("key.deserializer", "value.deserializer", "default.api.timeout.ms", "request.timeout.ms"),
    }
)

Positions = Mapping[tuple[str, int], int]  # of each partition of a topic: an offset


class PendingRecordsMonitor:
    """Asks on a thread of its own, which ends with the query. While there is no answer, nothing is told."""

    def __init__(
        self,
        session: Session,
        sources: Mapping[VertexId, Source],
        operators: tuple[PlanNode, ...],
        checkpoint: Path,
        over: threading.Event,
    ) -> None:
        """`sources`: those of Kafka. `checkpoint`: where Spark keeps what the query has processed."""
        self._session = session
        self._sources = sources
        self._operators = operators
        self._checkpoint = checkpoint
        self._over = over
        self._clients: dict[frozenset[tuple[str, str]], Any] = {}  # by their settings
        self._told: dict[str, PendingRecords] = {}
        self._silent: set[VertexId] = set()  # sources for which there was no answer the last time

    def figures(self) -> Mapping[str, PendingRecords]:
        return self._told

    def start(self, name: str) -> None:
        if self._sources:
            threading.Thread(target=self._ask_repeatedly, name=name, daemon=True).start()

    def _ask_repeatedly(self) -> None:
        pause = _LOOK
        try:
            while not self._over.wait(pause):
                found = positions(self._checkpoint, self._operators)
                asked = {source: at for source in self._sources if (at := in_kafka(found.get(source)))}
                pause = _EVERY if asked else _LOOK
                answers = {source: self._ask(source, at) for source, at in asked.items()}
                self._told = {source: answer for source, answer in answers.items() if answer is not None}
        finally:
            self._told = {}
            for client in self._clients.values():
                with suppress(Exception):  # the JVM may be gone
                    client.close()

    def _ask(self, source: VertexId, at: Positions) -> PendingRecords | None:
        """Return what waits for a source. None: that cannot be known now."""
        try:
            client = self._client(client_settings(self._sources[source].options))
            lines = "\n".join(f"{topic}\t{number}" for topic, number in at)
            found = count(at, ends_in(str(client.ends(lines))))
        except Exception as error:  # what the brokers, the client and Java may raise is without an end
            if source not in self._silent and not self._over.is_set():
                why = hidden(_said(error))
                log.warning("it is not known how many records wait in Kafka", source=source, error=why)
            self._silent.add(source)
            return None
        self._silent.discard(source)
        return found

    def _client(self, settings: Mapping[str, str]) -> Any:
        key = frozenset(settings.items())
        if key not in self._clients:
            given = self._session.jvm.java.util.HashMap()
            for name, text in settings.items():
                given.put(name, text)
            self._clients[key] = java_classes.make(self._session.spark, _CLASS, given, round(_TIMEOUT * 1000))
        return self._clients[key]


def _said(error: Exception) -> str:
    try:
        return spark_message(error)[:1000]
    except Exception:  # it asks the JVM, which may be gone
        return type(error).__name__


def positions(checkpoint: Path, operators: tuple[PlanNode, ...]) -> dict[str, str]:
    """Return how far each source was processed, by its name, as Spark's JSON; before any micro-batch, where it begins.

    Sources of which nothing is known yet are left out.
    """
    names, found = source_names(operators), dict[str, str]()
    for number, directory in source_logs(operators).items():
        with suppress(OSError, UnicodeDecodeError):
            # Kafka's source writes there where it begins: a zero byte, the version in a line, and the offset.
            _, _, offset = (checkpoint / "sources" / str(directory) / "0").read_text("utf-8").partition("\n")
            found[names[number]] = offset
    with suppress(OSError, ValueError, SnapshotFailed):
        done = snapshot.read_boundary(checkpoint).committed
        if done >= 0:
            by_line = {line: names[node.number] for line, node in source_lines(operators).items()}
            found |= snapshot.named_offsets(snapshot.read_offsets(checkpoint, done), by_line)
    return found


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Kafka's client: the options of a source that begin with `kafka.`, in whatever case."""
    given = {name[len(_PREFIX) :]: text for name, text in options.items() if name.lower().startswith(_PREFIX)}
    return {name: text for name, text in given.items() if name not in _CONSUMERS_OWN}


def in_kafka(offset: str | None) -> dict[tuple[str, int], int]:
    """Return the partitions of Spark's offset `{"clicks": {"0": 17}}`; none of an offset that is no such thing."""
    try:
        topics = value(offset or "null")
        return {(topic, int(number)): int(at) for topic, parts in topics.items() for number, at in parts.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def ends_in(lines: str) -> dict[tuple[str, int], int]:
    """Read what KafkaEnds answers."""
    found = (line.split("\t") for line in lines.splitlines())
    return {(topic, int(number)): int(at) for topic, number, at in found}


def count(processed: Positions, ends: Positions) -> PendingRecords:
    """Count the records from there to the ends. Offsets without a record count too, as in Kafka's own tools."""
    waiting = {
        f"{topic}.{number}": max(ends[topic, number] - at, 0)
        for (topic, number), at in processed.items()
        if (topic, number) in ends
    }
    most = nlargest(MOST_PARTS, waiting, key=lambda part: waiting[part])
    parts = {part: waiting[part] for part in sorted(most)}
    return PendingRecords(records=sum(waiting.values()), partitions=len(waiting), parts=parts)
