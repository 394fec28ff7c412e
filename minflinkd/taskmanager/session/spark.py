"""The tuned SparkSession of a child: every setting that must be there before the JVM starts, and why."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from minflinkd.taskmanager.session_protocol import SessionConfig

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {directory}/session-jvm.log
appender.file.filePattern = {directory}/session-jvm.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}}{{UTC}}Z %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
"""


@dataclass(frozen=True)
class Session:
    """A running SparkContext with its JVM. One per process."""

    spark: SparkSession
    config: SessionConfig
    jvm_pid: int

    @property
    def jvm(self) -> Any:
        return self.spark._jvm

    @property
    def gateway(self) -> Any:
        return self.spark.sparkContext._gateway


def settings(config: SessionConfig) -> dict[str, str]:
    """All Spark settings of the session. Pure."""
    work = Path(config.working_directory)
    java = [
        "-Xss8m",  # stopping a query can overflow the stack of its thread in a regular expression
        "-XX:+UseParallelGC",
        "-XX:TieredStopAtLevel=1",  # micro-batches are short: C2 never pays its compilation back
        f"-Djava.io.tmpdir={work / 'tmp'}",
        f"-Dlog4j2.configurationFile=file:{work / 'log4j2.properties'}",
        "-Duser.timezone=UTC",
    ]
    tuned = {
        "spark.app.name": config.name,
        "spark.master": config.master or f"local[{config.slots}]",
        "spark.driver.memory": f"{max(config.heap_bytes >> 20, 512)}m",
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(work / "local"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.scheduler.mode": "FAIR",  # one pool per job (J6)
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(config.slots),
        # State: versions with unique file names, changelogs per batch, snapshots in the background (C10a).
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
        "spark.sql.streaming.minBatchesToRetain": "50",  # what a snapshot links must outlive its linking
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",  # uploads carry checksums of their own
        "spark.sql.streaming.stopActiveRunOnRestart": "false",  # starting a copy would stop the original, silently
        "spark.sql.streaming.pollingDelay": "50ms",
        # Fewer file operations per micro-batch. Never fs.file.impl: RocksDB's uploads then fail in the background.
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        # Staged output is private until it is published: no rename pass, no marker file.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        # A driver that lives for months must not keep its past.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
        "spark.ui.retainedDeadExecutors": "5",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.sql.streaming.ui.retainedQueries": "5",
        "spark.sql.streaming.ui.retainedProgressUpdates": "5",
        "spark.sql.streaming.ui.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "3",
    }
    return tuned | config.conf


def launch(config: SessionConfig) -> Session:
    """Start the JVM and the SparkContext. Blocks for seconds; raises what pyspark raises."""
    work = Path(config.working_directory)
    for name in ("tmp", "local", "warehouse", "code"):
        (work / name).mkdir(parents=True, exist_ok=True)
    Path(config.log_directory).mkdir(parents=True, exist_ok=True)
    (work / "log4j2.properties").write_text(_LOG4J.format(directory=config.log_directory), "utf-8")
    # Inherited environments must not turn the session into another one.
    for name in ("SPARK_LOCAL_DIRS", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        os.environ.pop(name, None)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PIN_THREAD"] = "true"  # a Python thread keeps its JVM thread: scheduler pools stay its own
    builder = SparkSession.builder
    for key, value in settings(config).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs what a callback raises; that is reported already
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    return Session(spark, config, gateway.proc.pid)
