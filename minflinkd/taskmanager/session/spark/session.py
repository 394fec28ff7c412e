"""The tuned SparkSession of a session child: every setting that is needed before the JVM starts, and why."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from minflinkd.taskmanager.child.class_archive import class_archive
from minflinkd.taskmanager.child.protocol import SessionConfig
from minflinkd.taskmanager.session.job_secrets import JobSecrets
from minflinkd.taskmanager.session.spark import failures, java_classes, local_files, steady_plans, worker_daemon
from minflinkd.taskmanager.session.spark.java_names import remember_names
from minflinkd.taskmanager.session.spark.jvm import start_callbacks, start_jvm

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
_LOG4J_PRINTS = """\
rootLogger.level = warn
rootLogger.appenderRef.printed.ref = printed
appender.printed.type = Console
appender.printed.name = printed
appender.printed.target = SYSTEM_ERR
appender.printed.layout.type = PatternLayout
appender.printed.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS}{UTC}Z %p %c{1}: %m%n%ex
"""


def code_directory(config: SessionConfig) -> Path:
    """Return the directory for the code of jobs. Executors read it at the same path."""
    work = Path(config.working_directory)
    if config.on_cluster and config.state_directory:
        return Path(config.state_directory) / f"code-{work.name}"
    return work / "code"


def class_directory(config: SessionConfig) -> Path:
    """Return the directory of our own Java classes, also for executors."""
    return code_directory(config) / "classes"


def _paths(config: SessionConfig, classes: Path) -> dict[str, str]:
    """Append our directories to the configured paths, so that neither our code nor a job's hides anything there."""
    code = code_directory(config)
    ours = {
        "spark.executorEnv.PYTHONPATH": (code, code / "native"),  # for Python workers
        "spark.driver.extraClassPath": (classes,),
        "spark.executor.extraClassPath": (class_directory(config),),
    }
    given = {name: config.conf.get(name, "") for name in ours}
    return {name: os.pathsep.join(filter(None, (given[name], *map(str, paths)))) for name, paths in ours.items()}


@dataclass(frozen=True)
class Session:
    """A running SparkContext with its JVM. One per process."""

    spark: SparkSession
    config: SessionConfig
    jvm_pid: int
    secrets: JobSecrets

    @property
    def state_directory(self) -> str:
        """The directory below which attempts have their state. Executors write here too."""
        return self.config.state_directory or self.config.working_directory

    @property
    def jvm(self) -> Any:
        return self.spark._jvm

    @property
    def gateway(self) -> Any:
        return self.spark.sparkContext._gateway


# Micro-batches are short: code compiled by C2 never saves the time that its compilation took. With C1 alone, Java
# reserves only 48 MB for compiled code. Spark's generated code fills that within some dozens of queries, and nothing
# more is compiled for the rest of the session.
_COMPILER = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=512m")

# With its default of 99, Java may collect for 1 % of the time, and grows the heap until that is enough: in a warm-up,
# to 300 MB for new objects, although only 70 MB are in use. With 49 it may take 2 %, and queries are no slower
# (docs/benchmarks.md).
_COLLECTOR = ("-XX:+UseParallelGC", "-XX:GCTimeRatio=49")


def _crash_log(config: SessionConfig) -> tuple[str, ...]:
    """Return where Java writes about its own crash. It outlives the working directory."""
    if not config.log_directory:
        return ("-XX:+ErrorFileToStderr",)
    return (f"-XX:ErrorFile={Path(config.log_directory) / 'session-jvm-crash-%p.log'}",)


def settings(config: SessionConfig, classes: Path | None = None, options: Sequence[str] = ()) -> dict[str, str]:
    """Return all Spark settings of the session. Pure.

    `classes`: where our own classes are, if not in the session's directory. `options`: more options of Java.
    """
    work = Path(config.working_directory)
    java = [
        "-Xss8m",  # stopping a query can overflow the stack of its thread in a regular expression
        *_COLLECTOR,
        *_COMPILER,
        f"-Djava.io.tmpdir={work / 'tmp'}",
        f"-Dlog4j2.configurationFile=file:{work / 'log4j2.properties'}",
        *_crash_log(config),
        "-Duser.timezone=UTC",
        *options,
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
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "5",  # in real-time mode, for each shuffle; default: 50
        **steady_plans.SETTINGS,
        # State: versions have unique file names, each micro-batch writes changelogs, snapshots are made in the
        # background (C10a).
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.stateStore.maintenanceInterval": "5s",  # it closes the stores of ended queries (R6a)
        "spark.sql.streaming.minBatchesToRetain": "50",  # files must not be removed while a snapshot links them
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",  # uploads have checksums of their own
        "spark.sql.streaming.stopActiveRunOnRestart": "false",  # otherwise starting a copy silently stops the original
        "spark.sql.streaming.pollingDelay": "50ms",
        # Staged output is private until it is published, so it needs neither a rename pass nor a marker file.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        # A driver that lives for months must not keep the history of past queries.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "200",
        "spark.ui.retainedDeadExecutors": "5",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.sql.streaming.ui.retainedQueries": "5",
        "spark.sql.streaming.ui.retainedProgressUpdates": "5",
        "spark.sql.streaming.ui.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "100",  # row counts come from them: none may be lost
    }
    # On a standalone cluster its own setting and secret decide. Spark makes no secret for it, nor for its imitation.
    if not config.spark_master.startswith(("spark://", "local-cluster[")):
        tuned["spark.authenticate"] = "true"  # otherwise every local user could call into the session
    if not config.on_cluster and "spark.pyspark.python" not in config.conf:  # another Python may not have minflinkd
        tuned["spark.python.daemon.module"] = worker_daemon.__name__
    tuned |= local_files.CONTEXT
    tuned |= _on_cluster(config) if config.on_cluster else local_files.CHECKED | _driver_at("127.0.0.1")
    return tuned | config.conf | _paths(config, classes or class_directory(config))


def _on_cluster(config: SessionConfig) -> dict[str, str]:
    """Return the settings that differ if a cluster manager runs the executors."""
    different = {
        "spark.executor.memory": f"{max(config.heap_bytes >> 20, 512)}m",
        "spark.executor.extraJavaOptions": " ".join(("-Xss8m", *_COLLECTOR, *_COMPILER, "-Duser.timezone=UTC")),
        "spark.cores.max": str(config.slots),  # for a standalone cluster; other managers count executors
        # The first job waits until all executors are there, so that warm-up and checks reach each of them.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "30s",
        # Spark retries tasks there, and a task that is lost while it commits must leave no file.
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "1",
    }
    address = address_towards(config.spark_master)
    return different | _driver_at(address) if address is not None else different


def _driver_at(address: str) -> dict[str, str]:
    return {"spark.driver.host": address, "spark.driver.bindAddress": address}


def address_towards(master: str) -> str | None:
    """Return this machine's address on the route to a `spark://` master: executors reach the driver by it.

    None if the master has no address (yarn) or no usable one: Spark then chooses one, or reports the problem.
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


def launch(config: SessionConfig, archive_to: Path | None = None) -> Session:
    """Start the JVM and the SparkContext. Blocks for seconds; raises what pyspark raises.

    `archive_to`: where the JVM writes a class archive when it exits. The jar of our classes must be there.
    """
    work = Path(config.working_directory)
    for name in ("tmp", "local", "warehouse"):
        (work / name).mkdir(parents=True, exist_ok=True)
    log4j = _LOG4J_PRINTS
    if config.log_directory:
        Path(config.log_directory).mkdir(parents=True, exist_ok=True)
        log4j = _LOG4J.format(directory=config.log_directory)
    (work / "log4j2.properties").write_text(log4j, "utf-8")
    # Inherited environment variables must not change the session's configuration.
    for name in ("SPARK_LOCAL_DIRS", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        os.environ.pop(name, None)
    os.environ["PYSPARK_PYTHON"] = config.conf.get("spark.pyspark.python", sys.executable)  # for executors too
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PIN_THREAD"] = "true"  # a Python thread keeps its JVM thread, and so its scheduler pool
    classes = class_directory(config)
    classes.mkdir(parents=True, exist_ok=True)  # on a cluster it may be there from an earlier session of the same name
    archive = class_archive(config, os.environ)
    jar = archive.jar if archive is not None and archive.jar.exists() else None
    options = () if jar is None or archive is None else archive.options()
    if archive is not None and archive_to is not None:
        options = archive.options_to_make(archive_to)
    wanted = settings(config, jar, options)
    # The JVM must run before it can compile our classes: until then no setting may name one of them.
    start_jvm({name: value for name, value in wanted.items() if name not in local_files.WITH_CLASSES}, work)
    remember_names()
    jvm: Any = SparkContext._jvm
    if jar is None:
        java_classes.compile_classes(jvm, classes)
        if archive is not None:
            archive.keep(classes)
    # spark-submit looked for jars with Hadoop's own local file system, which is cached. Close it, so that ours is used.
    jvm.org.apache.hadoop.fs.FileSystem.closeAll()
    spark = SparkSession.builder.config(conf=SparkConf().setAll(list(wanted.items()))).getOrCreate()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it would log what callbacks raise, which we report already
    start_callbacks(gateway)
    secrets = JobSecrets(config.secrets_directory)
    failures.hide(secrets)
    return Session(spark, config, gateway.proc.pid, secrets)


def activate(session: Session, spark: SparkSession) -> None:
    """Make a task's session the active one on this thread, so that code that asks for it gets this one (J7)."""
    getattr(session.jvm, "org.apache.spark.sql.SparkSession").setActiveSession(spark._jsparkSession)
