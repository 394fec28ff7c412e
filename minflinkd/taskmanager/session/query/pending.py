"""How many records of Kafka wait for a query (K6).

Spark says where a topic ends only when it plans a micro-batch, and of one that takes ten minutes, ten minutes later. So
the brokers are asked now and then, beside the query: where do the partitions end that it has read from?
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import Any, Final

import structlog
from py4j.protocol import Py4JError

from minflinkd.checkpoint.offsets import value
from minflinkd.jobgraph.model import Source
from minflinkd.rpc.messages import MOST_PARTS, PendingRecords
from minflinkd.taskmanager.session.spark import java_classes
from minflinkd.taskmanager.session.spark.failures import hidden
from minflinkd.taskmanager.session.spark.session import Session

log = structlog.get_logger(__name__)

_FIRST: Final = 2.0  # seconds until it is asked first, and again until there is something to tell
_EVERY: Final = 10.0  # seconds between two questions later
_TIMEOUT: Final = 5.0  # seconds for an answer
_CLASS: Final = "kafka/KafkaEnds.java"
_PREFIX: Final = "kafka."

Positions = Mapping[tuple[str, int], int]  # of each partition of a topic: an offset


class KafkaBacklog:
    """Asks on a thread of its own, which ends with the query. While there is no answer, nothing is told."""

    def __init__(
        self,
        session: Session,
        sources: Mapping[str, Source],
        read: Callable[[], Mapping[str, str]],
        over: threading.Event,
    ) -> None:
        """`sources`: those of Kafka, by name. `read`: how far each has been read, as Spark's JSON."""
        self._session = session
        self._sources = sources
        self._read = read
        self._over = over
        self._clients: dict[str, Any] = {}
        self._told: dict[str, PendingRecords] = {}
        self._silent: set[str] = set()  # sources whose brokers did not answer the last time

    def figures(self) -> dict[str, PendingRecords]:
        return self._told

    def start(self, name: str) -> None:
        if self._sources:
            threading.Thread(target=self._ask_repeatedly, name=name, daemon=True).start()

    def _ask_repeatedly(self) -> None:
        try:
            while not self._over.wait(_EVERY if self._told else _FIRST):
                read = self._read()
                self._told = {
                    name: found
                    for name in self._sources
                    if (positions := partitions(value(read.get(name, "null"))))
                    if (found := self._ask(name, positions)) is not None
                }
        finally:
            for client in self._clients.values():
                self._close(client)

    def _ask(self, name: str, positions: Positions) -> PendingRecords | None:
        """Return what waits for one source. None: its brokers do not say."""
        try:
            if name not in self._clients:
                self._clients[name] = self._new_client(self._sources[name].options)
            lines = "\n".join(f"{topic}\t{number}" for topic, number in positions)
            found = pending(positions, ends(str(self._clients[name].ends(lines))))
        except (Py4JError, OSError) as error:
            if name not in self._silent and not self._over.is_set():
                log.warning("the brokers do not say where topics end", source=name, error=hidden(str(error))[-1000:])
            self._silent.add(name)
            return None
        self._silent.discard(name)
        return found

    def _new_client(self, options: Mapping[str, str]) -> Any:
        settings = self._session.jvm.java.util.HashMap()
        for key, text in client_settings(options).items():
            settings.put(key, text)
        return java_classes.make(self._session.spark, _CLASS, settings, round(_TIMEOUT * 1000))

    @staticmethod
    def _close(client: Any) -> None:
        try:
            client.close()
        except (Py4JError, OSError) as error:
            log.info("a Kafka client did not close", error=hidden(str(error))[-1000:])


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of Kafka's client: the options of a source that begin with `kafka.`."""
    return {name[len(_PREFIX) :]: text for name, text in options.items() if name.startswith(_PREFIX)}


def partitions(offset: Any) -> dict[tuple[str, int], int]:
    """Return the partitions of Spark's offset `{"clicks": {"0": 17}}`; none of an offset that is no such thing."""
    try:
        return {(topic, int(number)): int(at) for topic, parts in offset.items() for number, at in parts.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def ends(lines: str) -> dict[tuple[str, int], int]:
    """Read what KafkaEnds answers."""
    found = (line.split("\t") for line in lines.splitlines())
    return {(topic, int(number)): int(at) for topic, number, at in found}


def pending(read: Positions, end: Positions) -> PendingRecords:
    """Count the records after `read`. Offsets of aborted transactions and of compacted records count, too, as in Kafka.

    The partitions with most of them are named, like `clicks.0`.
    """
    waiting = {
        f"{topic}.{number}": max(end[topic, number] - at, 0)
        for (topic, number), at in read.items()
        if (topic, number) in end
    }
    most = nlargest(MOST_PARTS, waiting, key=lambda part: waiting[part])
    return PendingRecords(records=sum(waiting.values()), parts={part: waiting[part] for part in sorted(most)})
