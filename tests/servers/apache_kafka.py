"""Apache Kafka: one process that is broker and controller (KRaft), with records that survive a kill."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.servers.install import KAFKA_BROKER, KAFKA_CONNECTOR
from tests.servers.process import HOST, Server

_JVM = (
    "-Xmx256m",
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
)
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{main},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{main}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
num.network.threads=2
num.io.threads=2
background.threads=1
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.enable=false
log.retention.ms=-1
"""
# What `kafka.tools.StorageTool format` would write. It would take a JVM of its own, and as long as the broker's start.
_FORMAT = "version=1\ncluster.id=bWluZmxpbmtkLXRlc3RzLQ\nnode.id=1\n"
_LOG4J = """
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1}: %m%n
"""


class Record(NamedTuple):
    """What a test writes. `timestamp`: in milliseconds since 1970."""

    value: str | bytes | None
    partition: int = 0
    timestamp: int = 0
    key: str | bytes | None = None


class Read(NamedTuple):
    """What a test reads."""

    partition: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class ApacheKafka(Server):
    """Takes 150 to 200 MB and some seconds to start. Use Tansu for what does not depend on the broker."""

    name = "Apache Kafka"
    port_names = ("main", "controller")

    @classmethod
    def missing(cls) -> str | None:
        if not KAFKA_BROKER.is_dir():
            return "Apache Kafka is not installed: make servers (with Maven)"
        if importlib.util.find_spec("confluent_kafka") is None:
            return "Apache Kafka's client is not installed: pip install confluent-kafka"
        if not KAFKA_CONNECTOR.is_dir():
            return "Spark's Kafka connector is not installed: make servers (with Maven)"
        return None if shutil.which("java") else "Apache Kafka needs java"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def jars(self) -> str:
        """Spark's connector, for `spark.jars`."""
        return ",".join(str(jar) for jar in sorted(KAFKA_CONNECTOR.glob("*.jar")))

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        if not (data / "meta.properties").exists():
            (data / "meta.properties").write_text(_FORMAT)
        (self.directory / "server.properties").write_text(_SETTINGS.format(host=HOST, data=data, **ports))
        (self.directory / "log4j2.properties").write_text(_LOG4J)
        logging = "-Dlog4j2.configurationFile=log4j2.properties"
        return "java", *_JVM, logging, "-cp", f"{KAFKA_BROKER}/*", "kafka.Kafka", "server.properties"

    async def answers(self) -> bool:
        return await asyncio.to_thread(self._answers)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException

        try:
            return len(self._admin().list_topics(timeout=4).brokers) == 1
        except KafkaException:
            return False

    async def create_topic(self, name: str, partitions: int = 2, **settings: str) -> None:
        """`settings`: of the topic, with `_` for the dots in their names."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        await asyncio.to_thread(self._create_topic, name, partitions, config)

    def _create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        from confluent_kafka.cimpl import NewTopic

        admin = self._admin()  # what it has not done yet is given up when it is collected
        for created in admin.create_topics([NewTopic(name, partitions, 1, config=dict(config))]).values():
            created.result(timeout=60)

    def delete_group(self, group: str) -> None:
        """Delete a consumer group with its offsets. Blocks."""
        admin = self._admin()  # what it has not done yet is given up when it is collected
        for deleted in admin.delete_consumer_groups([group]).values():
            deleted.result(timeout=60)

    def produce(self, topic: str, records: Iterable[Record]) -> None:
        """Write the records. Return when the broker has them all. Blocks."""
        from confluent_kafka import Producer

        producer, failures = Producer(self._client() | {"enable.idempotence": True}), list[Any]()

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error)

        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                timestamp=record.timestamp,
                on_delivery=delivered,
            )
        left = producer.flush(60)
        assert not left
        assert not failures, failures

    def records(self, topic: str, partitions: int = 2, encoding: str = "utf-8") -> list[Read]:
        """Return the committed records of a topic that was made with so many partitions, as they are now. Blocks.

        With the encoding latin-1, each byte is a letter.
        """
        from confluent_kafka import Consumer
        from confluent_kafka.cimpl import TopicPartition

        settings = {"group.id": "nobody", "isolation.level": "read_committed", "enable.auto.commit": False}
        consumer, found = Consumer(self._client() | settings | {"enable.partition.eof": True}), list[Read]()
        try:
            for number in range(partitions):
                consumer.assign([TopicPartition(topic, number, 0)])
                deadline = time.monotonic() + 60
                while True:
                    assert time.monotonic() < deadline, f"{topic}-{number} has no end within 60 s"
                    message = consumer.poll(1)
                    if message is None:
                        continue
                    if message.error() is not None:
                        assert message.error().name() == "_PARTITION_EOF", message.error()
                        break
                    key = None if message.key() is None else message.key().decode(encoding)
                    value = None if message.value() is None else message.value().decode(encoding)
                    found.append(Read(number, key, value, tuple(message.headers() or ())))
        finally:
            consumer.close()
        return found

    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient(self._client())

    def _client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.address, "log_level": 0}
