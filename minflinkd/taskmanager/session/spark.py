"""The tuned SparkSession of a child: every setting that must be there before the JVM starts, and why."""

from __future__ import annotations

import logging
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from minflinkd.taskmanager.session import java_classes, local_files, steady_plans
from minflinkd.taskmanager.session.java_names import remember_names
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


def code_directory(config: SessionConfig) -> Path:
    """Where the code of jobs lies: executors read it, at the same path."""
    work = Path(config.working_directory)
    if config.on_cluster and config.state_directory:
        return Path(config.state_directory) / f"code-{work.name}"
    return work / "code"


def class_directory(config: SessionConfig) -> Path:
    """Where Java classes of our own lie, for executors as well."""
    return code_directory(config) / "classes"


def _paths(config: SessionConfig) -> dict[str, str]:
    """Behind what is given, so that nothing of ours, and no job's code, hides it."""
    code, classes = code_directory(config), class_directory(config)
    ours = {
        "spark.executorEnv.PYTHONPATH": (code, code / "native"),  # of Python's workers
        "spark.driver.extraClassPath": (classes,),
        "spark.executor.extraClassPath": (classes,),
    }
    given = {name: config.conf.get(name, "") for name in ours}
    return {name: os.pathsep.join(filter(None, (given[name], *map(str, paths)))) for name, paths in ours.items()}


@dataclass(frozen=True)
class Session:
    """A running SparkContext with its JVM. One per process."""

    spark: SparkSession
    config: SessionConfig
    jvm_pid: int

    @property
    def state_directory(self) -> str:
        """Executors write here."""
        return self.config.state_directory or self.config.working_directory

    @property
    def jvm(self) -> Any:
        return self.spark._jvm

    @property
    def gateway(self) -> Any:
        return self.spark.sparkContext._gateway


# Micro-batches are short: C2 never pays its compilation back. With C1 alone Java would keep 48 MB for compiled code,
# which generated code fills within some dozens of queries; then nothing is compiled any more while the session lives.
_COMPILER = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=512m")


def settings(config: SessionConfig) -> dict[str, str]:
    """All Spark settings of the session. Pure."""
    work = Path(config.working_directory)
    java = [
        "-Xss8m",  # stopping a query can overflow the stack of its thread in a regular expression
        "-XX:+UseParallelGC",
        *_COMPILER,
        f"-Djava.io.tmpdir={work / 'tmp'}",
        f"-Dlog4j2.configurationFile=file:{work / 'log4j2.properties'}",
        f"-XX:ErrorFile={Path(config.log_directory) / 'session-jvm-crash-%p.log'}",  # else it goes with its directory
        "-Duser.timezone=UTC",
    ]
    tuned = {
        "spark.app.name": config.name,
        "spark.master": config.spark_master,
        "spark.driver.memory": f"{max(config.heap_bytes >> 20, 512)}m",
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.local.dir": str(work / "local"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.scheduler.mode": "FAIR",  # one pool per job (J6)
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.shuffle.partitions": str(config.slots),
        **steady_plans.SETTINGS,
        # State: versions with unique file names, changelogs per batch, snapshots in the background (C10a).
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "5s",  # closes what ended (R6a)
        "spark.sql.streaming.minBatchesToRetain": "50",  # what a snapshot links must outlive its linking
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",  # uploads carry checksums of their own
        "spark.sql.streaming.stopActiveRunOnRestart": "false",  # starting a copy would stop the original, silently
        "spark.sql.streaming.pollingDelay": "50ms",
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
        "spark.sql.streaming.numRecentProgressUpdates": "100",  # rows are counted by it: none may be lost
    }
    tuned |= local_files.CONTEXT
    tuned |= _on_cluster(config) if config.on_cluster else local_files.CHECKED | _driver_at("127.0.0.1")
    return tuned | config.conf | _paths(config)


def _on_cluster(config: SessionConfig) -> dict[str, str]:
    """What differs where a cluster manager runs the executors."""
    different = {
        "spark.executor.memory": f"{max(config.heap_bytes >> 20, 512)}m",
        "spark.executor.extraJavaOptions": " ".join(
            ("-Xss8m", "-XX:+UseParallelGC", *_COMPILER, "-Duser.timezone=UTC")
        ),
        "spark.cores.max": str(config.slots),  # of a standalone cluster; others count executors
        # The first job waits until all executors are there, so that warm-up and checks reach each of them.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "30s",
        # Tasks are tried again there, and one that was lost while it committed must leave no file behind.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    }
    address = address_towards(config.spark_master)
    return different | _driver_at(address) if address is not None else different


def _driver_at(address: str) -> dict[str, str]:
    return {"spark.driver.host": address, "spark.driver.bindAddress": address}


def address_towards(master: str) -> str | None:
    """By which of its addresses this machine reaches a `spark://` master, and executors thus reach the driver.

    None where the master has no address (yarn) or none that leads anywhere: Spark then chooses, or says what is wrong.
    """
    url = urlsplit(master.partition(",")[0])
    if url.scheme != "spark" or url.hostname is None:
        return None
    try:
        kind, _, _, _, place = socket.getaddrinfo(url.hostname, url.port or 7077, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(place)  # sends nothing: only the route is looked up
            return str(probe.getsockname()[0])
    except OSError:
        return None


def launch(config: SessionConfig) -> Session:
    """Start the JVM and the SparkContext. Blocks for seconds; raises what pyspark raises."""
    work = Path(config.working_directory)
    for name in ("tmp", "local", "warehouse"):
        (work / name).mkdir(parents=True, exist_ok=True)
    Path(config.log_directory).mkdir(parents=True, exist_ok=True)
    (work / "log4j2.properties").write_text(_LOG4J.format(directory=config.log_directory), "utf-8")
    # Inherited environments must not turn the session into another one.
    for name in ("SPARK_LOCAL_DIRS", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        os.environ.pop(name, None)
    os.environ["PYSPARK_PYTHON"] = config.conf.get("spark.pyspark.python", sys.executable)  # of executors as well
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PIN_THREAD"] = "true"  # a Python thread keeps its JVM thread: scheduler pools stay its own
    classes, wanted = class_directory(config), settings(config)
    classes.mkdir(parents=True, exist_ok=True)  # on a cluster, of an earlier session of the same name
    first = [(name, value) for name, value in wanted.items() if name not in local_files.WITH_CLASSES]
    SparkContext._ensure_initialized(conf=SparkConf().setAll(first))  # starts the JVM
    remember_names()
    jvm: Any = SparkContext._jvm
    java_classes.compile_classes(jvm, classes)
    jvm.org.apache.hadoop.fs.FileSystem.closeAll()  # spark-submit looks for jars, with a file system that is kept
    spark = SparkSession.builder.config(conf=SparkConf().setAll(list(wanted.items()))).getOrCreate()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs what a callback raises; that is reported already
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    return Session(spark, config, gateway.proc.pid)
