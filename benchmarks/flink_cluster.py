"""Flink's own cluster: two JobManagers, of which ZooKeeper chooses the leader, and a TaskManager with two slots.

It runs the job of `tests/windows_job.py`: the same files, the same aggregate, a checkpoint a second. Its sink writes
JSON instead of Parquet, for which it would need Hadoop.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import sys
import zipfile
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import aiohttp
import msgspec

from tests.servers import install
from tests.servers.process import HOST, Server, responds
from tests.waiting import until

VERSION = "2.3.0"
_HOME = install.HOME / f"flink-{VERSION}"
_SUBMIT = Path(__file__).with_name("FlinkSubmit.java")
_JAVA = (  # what Flink's scripts pass to Java 17
    "java",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "net", "io", "nio", "time", "text")),
    *(f"--add-opens=java.base/java.util{name}=ALL-UNNAMED" for name in ("", ".concurrent", ".concurrent.atomic")),
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("sun.nio.ch", "java.lang.reflect")),
    "-Dlog4j2.level=WARN",
)
_SIZES = {  # Flink's scripts would compute them
    "taskmanager.cpu.cores": "2.0",
    "taskmanager.memory.task.heap.size": "512m",
    "taskmanager.memory.task.off-heap.size": "0",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    "taskmanager.memory.managed.size": "128m",
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.jvm-metaspace.size": "256m",
    "taskmanager.memory.jvm-overhead.min": "64m",
    "taskmanager.memory.jvm-overhead.max": "64m",
}
_JOB = """
CREATE TABLE events (k STRING, `time` TIMESTAMP_LTZ(3), v BIGINT, WATERMARK FOR `time` AS `time` - INTERVAL '1' MINUTE)
WITH ('connector' = 'filesystem', 'path' = 'file://{events}', 'format' = 'json',
      'json.timestamp-format.standard' = 'ISO-8601', 'source.monitor-interval' = '100 ms',
      'source.path.regex-pattern' = '.*/[0-9]+\\.json');
CREATE TABLE results (`minute` TIMESTAMP_LTZ(3), k STRING, n BIGINT, total BIGINT)
WITH ('connector' = 'filesystem', 'path' = 'file://{results}', 'format' = 'json',
      'sink.rolling-policy.rollover-interval' = '1 s', 'sink.rolling-policy.check-interval' = '500 ms');
CREATE TEMPORARY VIEW clean AS SELECT * FROM events WHERE v >= 0;
INSERT INTO results SELECT window_start, k, COUNT(*), SUM(v)
FROM TABLE(TUMBLE(TABLE clean, DESCRIPTOR(`time`), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end, k;
"""


def installed() -> None:
    """Download Flink's jars, which its Python package has. Raises install.NotInstalled."""
    if _HOME.is_dir():
        return
    draft = _HOME.with_name(f"{_HOME.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        package = f"apache-flink-libraries=={VERSION}"
        install.run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(draft), package)
        (wheel,) = draft.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(draft, [name for name in archive.namelist() if name.startswith("pyflink/lib/")])
        wheel.unlink()
        draft.rename(_HOME)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


class _Process(Server):
    """A process of the cluster."""

    entry: str
    heap: str

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__(directory)
        self._settings = settings

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("java") else "Flink needs Java"

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        settings = {**self._settings, **self.own_settings(ports)}
        lines = [f"{key}: {value}" for key, value in settings.items()]
        (self.directory / "config.yaml").write_text("\n".join(lines) + "\n")
        entry = f"org.apache.flink.runtime.{self.entry}"
        return (*_JAVA, f"-Xmx{self.heap}", "-cp", _classpath(), entry, "--configDir", str(self.directory))

    def own_settings(self, ports: Mapping[str, int]) -> Mapping[str, str]:
        return {}


class JobManager(_Process):
    name = "Flink's JobManager"
    entry, heap = "entrypoint.StandaloneSessionClusterEntrypoint", "512m"
    port_names = ("main", "rpc")

    def own_settings(self, ports: Mapping[str, int]) -> Mapping[str, str]:
        return {"rest.port": str(ports["main"]), "high-availability.jobmanager.port": str(ports["rpc"])}

    async def answers(self) -> bool:
        return await responds(f"{self.endpoint}/config")

    async def state(self, job_id: str) -> tuple[str, int]:
        """Return the job's state, RUNNING once all of its tasks are, and how often it was restored.

        Standbys pass requests on to the leader. While there is none, the state is empty.
        """
        try:
            job = await self._get(f"/jobs/{job_id}")
            checkpoints = await self._get(f"/jobs/{job_id}/checkpoints")
        except (OSError, TimeoutError, aiohttp.ClientError, KeyError):
            return "", 0
        tasks = {task["status"] for task in job["vertices"]}
        return job["state"] if tasks == {"RUNNING"} else "", checkpoints["counts"]["restored"]

    async def completed(self, job_id: str) -> int:
        counts = (await self._get(f"/jobs/{job_id}/checkpoints"))["counts"]
        return int(counts["completed"])

    async def _get(self, path: str) -> dict[str, dict[str, int]]:
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(self.endpoint + path) as answer:
            answer.raise_for_status()
            return msgspec.json.decode(await answer.read())


class TaskManager(_Process):
    name = "Flink's TaskManager"
    entry, heap = "taskexecutor.TaskManagerRunner", "1g"

    async def answers(self) -> bool:
        return self.runs  # the JobManager says when it has registered


class FlinkCluster:
    def __init__(self, job_managers: Sequence[JobManager], job_id: str) -> None:
        self.leader, self.standby = job_managers
        self.job_id = job_id

    async def state(self) -> tuple[str, int]:
        """What the standby, which leads as soon as there is no other, says of the job."""
        return await self.standby.state(self.job_id)

    async def exchange_roles(self) -> None:
        """Start the JobManager that was killed, as the standby of the other one."""
        await self.leader.restart()
        self.leader, self.standby = self.standby, self.leader


@contextlib.asynccontextmanager
async def flink_cluster(
    base: Path, zookeeper: str, session_timeout_ms: int, *, events: Path, results: Path
) -> AsyncIterator[FlinkCluster]:
    """Run the cluster with the job, which has completed three checkpoints. Raises install.NotInstalled."""
    await asyncio.to_thread(installed)
    settings = {
        "jobmanager.bind-host": HOST,
        "jobmanager.rpc.address": HOST,
        "rest.address": HOST,
        "rest.bind-address": HOST,
        "taskmanager.host": HOST,
        "taskmanager.bind-host": HOST,
        "taskmanager.numberOfTaskSlots": "2",
        "parallelism.default": "2",
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": zookeeper,
        "high-availability.cluster-id": f"/{secrets.token_hex(8)}",  # the next cluster shall not find this one's job
        "high-availability.storageDir": f"file://{base / 'ha'}",
        "high-availability.zookeeper.client.session-timeout": str(session_timeout_ms),
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": f"file://{base / 'checkpoints'}",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": "100 ms",
        "restart-strategy.fixed-delay.attempts": "1000",
        "io.tmp.dirs": str(base / "tmp"),
        "state.backend.type": "rocksdb",
        **_SIZES,
    }
    (base / "tmp").mkdir(parents=True)
    job_managers = [JobManager(base / f"jobmanager-{n}", settings) for n in (1, 2)]
    task_manager = TaskManager(base / "taskmanager", settings)
    try:
        for server in (*job_managers, task_manager):
            await server.start()
        job_id = await _submitted(base, job_managers[0].directory, events, results)

        async def checkpointed() -> bool:
            with contextlib.suppress(OSError, aiohttp.ClientError):
                return await job_managers[0].completed(job_id) >= 3
            return False

        await until(checkpointed, "Flink's job has three checkpoints", timeout=180)
        yield FlinkCluster(job_managers, job_id)
    finally:
        for server in (task_manager, *job_managers):
            await server.kill()


async def _submitted(base: Path, configuration: Path, events: Path, results: Path) -> str:
    job = base / "job.sql"
    job.write_text(_JOB.format(events=events, results=results))
    submission = await asyncio.create_subprocess_exec(
        *(*_JAVA, "-cp", _classpath(), str(_SUBMIT), str(configuration), str(job)), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(submission.communicate(), 300)
    if submission.returncode != 0:
        raise RuntimeError("Flink's job was not submitted; its error stands above")
    return said.decode().split()[-1]


def _classpath() -> str:
    return f"{_HOME / 'pyflink' / 'lib'}/*"
