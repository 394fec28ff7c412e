"""One fault after another in one run: alerts fire, and the run is told as OpenLineage events (E19b)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from minflinkd.cli.job_files import JobFile
from tests.cluster import running_cluster, write_job
from tests.component.monitoring.test_grafana import answers
from tests.e2e.alerts.firing import fires, hurried
from tests.faults.test_diagnosis import job, through
from tests.faults.test_storage_faults import Disk, counting_job
from tests.faulty_disk import FULL, FULL_FOR_TASKS, SOUND
from tests.servers.prometheus import needs_prometheus, prometheus

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), needs_prometheus]


def with_entry_point(disk: Disk) -> dict[str, str]:
    """Return an environment in which the emitter is installed, as it is after `pip install`."""
    info = disk.environ["PYTHONPATH"].split(os.pathsep)[0] + "/minflinkd_openlineage-1.0.dist-info"
    Path(info).mkdir()
    (Path(info) / "METADATA").write_text("Metadata-Version: 2.1\nName: minflinkd-openlineage\nVersion: 1.0\n")
    (Path(info) / "entry_points.txt").write_text(
        "[minflinkd.listeners]\nopenlineage = minflinkd_openlineage:OpenLineage\n"
    )
    plugins = Path(__file__).parents[3] / "plugins" / "openlineage"
    return {**disk.environ, "PYTHONPATH": os.pathsep.join((disk.environ["PYTHONPATH"], str(plugins)))}


def sound_job(base: Path) -> JobFile:
    """Write a job of which every query of the dashboard has figures: it has a watermark, too."""
    rate = {"format": "rate", "options": {"rowsPerSecond": 50}}
    vertices = {
        "numbers": {"source": rate, "watermark": {"column": "timestamp", "delay": "1 second"}},
        "values": {"inputs": ["numbers"], "sql": "SELECT value, timestamp FROM numbers"},
        "out": {"inputs": ["values"], "sink": {"format": "parquet", "path": str(base / "sound")}},
    }
    document: dict[str, Any] = {"name": "sound", "parallelism": 1, "trigger-interval": "200 ms", "vertices": vertices}
    document["checkpointing"] = {"interval": "500 ms", "tolerable-failed-checkpoints": 1000}
    return write_job(base / "sound.yaml", document)


async def test_alerts_fire_by_their_causes_and_the_run_is_told_as_lineage(tmp_path: Path) -> None:
    """A sound job first: no alert fires, and every query of the dashboard has series. Then one fault after another."""
    disk = Disk(tmp_path / "storage")
    lineage = tmp_path / "lineage.jsonl"
    settings = {
        "resourcemanager.standby-taskmanagers": 1,
        "resourcemanager.max-taskmanagers": 1,
        "taskmanager.numberOfTaskSlots": 2,
        "heartbeat.timeout": "10 s",
        "execution.checkpointing.dir": f"faulty://{disk.objects}",
        "listeners.openlineage.file": str(lineage),
    }
    async with running_cluster(tmp_path / "cluster", environ=with_entry_point(disk), **settings) as cluster:
        await cluster.await_ready(1)
        job_id = await cluster.submit(sound_job(tmp_path))
        await cluster.await_checkpoints(job_id, 3)
        target = cluster.url.removeprefix("http://")
        rules = hurried(tmp_path / "rules.yml")
        async with prometheus(tmp_path / "prometheus", target, rules=rules, headers=cluster.headers) as server:
            await answers(server)
            # Where a minute lasts a second, alerts for what lasts a moment may fire. None of the others may.
            assert set(await server.firing()) <= {"MinflinkdSlotsWait", "MinflinkdCheckpointsSlow"}

            disk.becomes(FULL)  # the daemon cannot even write down the number of the next checkpoint
            await fires(server, "MinflinkdCheckpointsNotBegun", job=job_id, severity="critical")
            disk.becomes(FULL_FOR_TASKS)
            await fires(server, "MinflinkdCheckpointsFail", job=job_id, severity="critical")
            await fires(server, "MinflinkdStorageFails", job=job_id)
            disk.becomes(SOUND)

            bad = await cluster.submit(job(tmp_path, "poison", through("poison")))
            await fires(server, "MinflinkdJobRestartsRepeatedly", job=bad)
            await cluster.cancel(bad)

            waits = await cluster.submit(counting_job(tmp_path, "first"))
            more = await cluster.submit(counting_job(tmp_path, "second"))
            await fires(server, "MinflinkdSlotsWait")
            for each in (waits, more):
                await cluster.client.cancel(each)

            os.kill((await cluster.task_manager_of(job_id)).minflinkd.pid, signal.SIGKILL)
            await fires(server, "MinflinkdTaskManagerLost")

            await cluster.await_state(job_id, "RUNNING", timeout=150)
            await cluster.cancel(job_id)
            cluster.jobs.clear()
            await cluster.stop()
            await fires(server, "MinflinkdNoLeader", severity="critical")
    events = [json.loads(line) for line in lineage.read_text().splitlines()]
    told = {(each["job"]["name"], each["eventType"]) for each in events}
    assert told >= {("sound", "START"), ("poison", "START"), ("poison", "ABORT"), ("sound", "ABORT")}
    assert {each["name"] for event in events for each in event["outputs"]} >= {str(tmp_path / "sound")}
