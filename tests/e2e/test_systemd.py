"""The shipped unit under a real systemd, with a job that runs (A15, A19, E25)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from tests.servers.systemd import Host, booted
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CONFIG = """
resourcemanager.standby-taskmanagers: 0
resourcemanager.min-taskmanagers: 1
resourcemanager.taskmanager-registration.timeout: 5 min
taskmanager.memory.heap.size: 512m
heartbeat.timeout: 10 s
"""

JOB = """
name: {name}
checkpointing: {{interval: 1 s}}
trigger-interval: 300 ms
vertices:
  numbers: {{source: {{format: rate, options: {{rowsPerSecond: 20}}}}}}
  out: {{inputs: [numbers], sink: {{format: parquet, path: /data/{name}}}}}
"""


def run(host: Host, name: str) -> None:
    (host.data / f"{name}.yaml").write_text(JOB.format(name=name))
    host.minflinkd("run", f"/data/{name}.yaml", timeout=150)


def task(host: Host, name: str) -> dict[str, Any]:
    """Return what is said of the job's only task, or nothing while no daemon answers or the job does not run."""
    said = host.tries(*host_command("info", name, "--json"))
    if said.returncode != 0:
        return {}
    job = json.loads(said.stdout)
    found: dict[str, Any] = job["vertices"][0]["minflinkd"] if job["state"] == "RUNNING" else {}
    return found | {"restarts": job["minflinkd"]["restarts"]} if found else {}


def host_command(*command: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "minflinkd", *command)


def shown(host: Host, what: str, unit: str = "minflinkd") -> str:
    """Return a property of a unit."""
    return host.run("systemctl", "show", unit, f"--property={what}", "--value")


def main_pid(host: Host) -> str:
    return shown(host, "MainPID")


async def goes_on(
    host: Host, beyond: int, says: Callable[[], bool] = lambda: True, *, name: str = "steady"
) -> dict[str, Any]:
    def further() -> dict[str, Any] | None:
        if not says():
            return None
        found = task(host, name)  # asked after `says`: before it, the answer could be the one of the attempt before
        return found if found.get("batches", 0) > beyond else None

    return await until(further, f"micro-batches beyond {beyond}", timeout=120, pause=0.3)


async def test_a_restart_and_a_kill_stop_no_task_and_a_stop_leaves_nothing(tmp_path: Path) -> None:
    """Every row is written once, and all that was read is published by the last checkpoint (A14, A15, A19)."""
    with booted(tmp_path / "host", CONFIG) as host:
        host.run("systemctl", "start", "minflinkd", timeout=120)
        run(host, "steady")
        first = await goes_on(host, beyond=5)
        seen = first
        for command in (
            ("systemctl", "restart", "minflinkd"),
            ("systemctl", "kill", "--signal=KILL", "--kill-whom=main", "minflinkd"),
        ):
            last = main_pid(host)
            host.run(*command, timeout=120)
            seen = await goes_on(host, seen["batches"] + 3, lambda last=last: main_pid(host) not in ("0", last))  # type: ignore[misc]
            assert seen["attempt-id"] == first["attempt-id"]
            assert (seen["taskmanager-id"], seen["restarts"]) == (first["taskmanager-id"], 0)
        host.run("systemctl", "reload", "minflinkd")
        host.run("systemctl", "stop", "minflinkd", timeout=120)
        assert host.tries("pgrep", "--list-full", "--euid", "minflinkd").stdout == ""
        journal = host.journal("minflinkd")
        assert (journal.count('"ending": "handover"'), journal.count('"ending": "stop"')) == (1, 1)
        assert journal.count("a last checkpoint before the stop") == 1
        written = sorted(pyarrow.dataset.dataset(host.data / "steady").to_table(["value"])["value"].to_pylist())
        assert len(written) > 100
        assert written == list(range(len(written)))


async def test_a_hanging_daemon_and_a_killed_session_cost_no_other_task(tmp_path: Path) -> None:
    """The watchdog kills a daemon that is stopped, and the next one adopts both tasks.

    A session that is killed, as the kernel does when memory is short, restarts its own task alone. The unit stays, and
    so do the daemon and the task in the other session (A14, A15, A19).
    """
    one_task_each = "taskmanager.numberOfTaskSlots: 1\nresourcemanager.min-taskmanagers: 2\n"
    with booted(tmp_path / "host", CONFIG.replace("resourcemanager.min-taskmanagers: 1\n", one_task_each)) as host:
        host.run("systemctl", "start", "minflinkd", timeout=120)
        names = ("steady", "other")
        for name in names:
            run(host, name)
        first = {name: await goes_on(host, 3, name=name) for name in names}
        assert first["steady"]["taskmanager-id"] != first["other"]["taskmanager-id"]
        assert shown(host, "OOMPolicy") == "continue"

        hangs = main_pid(host)
        host.run("kill", "-STOP", hangs)
        for name in names:
            seen = await goes_on(
                host, first[name]["batches"] + 3, lambda: main_pid(host) not in ("0", hangs), name=name
            )
            assert (seen["attempt-id"], seen["restarts"]) == (first[name]["attempt-id"], 0)
        assert "Watchdog timeout" in host.journal("minflinkd")
        assert shown(host, "NRestarts") == "1"

        daemon = main_pid(host)
        steady, other = task(host, "steady"), task(host, "other")
        host.run("pkill", "-KILL", "--full", f"java.*{steady['taskmanager-id']}")
        again = await goes_on(host, 3, lambda: task(host, "steady").get("restarts", 0) > 0)
        assert again["attempt-id"] != steady["attempt-id"]
        seen = await goes_on(host, other["batches"] + 3, name="other")
        assert (seen["attempt-id"], seen["restarts"]) == (first["other"]["attempt-id"], 0)
        assert (main_pid(host), shown(host, "NRestarts"), shown(host, "ActiveState")) == (daemon, "1", "active")


async def test_a_taskmanager_has_a_unit_of_its_own(tmp_path: Path) -> None:
    """Its task goes on while the daemon is restarted; its own restart is that of the task; a stop leaves nothing (A19).

    It registers by the secret that the daemon made, and has a memory limit of its own.
    """
    standalone = "resourcemanager.driver: standalone\njobmanager.rpc.port: 6123\n"
    with booted(tmp_path / "host", CONFIG + standalone) as host:
        unit = "minflinkd-taskmanager@1"
        host.run("systemctl", "set-property", "--runtime", unit, "MemoryMax=3G")
        host.run("systemctl", "start", "minflinkd", unit, timeout=150)
        run(host, "steady")
        first = await goes_on(host, 3)
        daemon = main_pid(host)
        host.run("systemctl", "restart", "minflinkd", timeout=120)
        seen = await goes_on(host, first["batches"] + 3, lambda: main_pid(host) not in ("0", daemon))
        assert (seen["attempt-id"], seen["restarts"]) == (first["attempt-id"], 0)
        assert shown(host, "MemoryMax", unit) == str(3 << 30)
        host.run("systemctl", "restart", unit, timeout=150)
        seen = await goes_on(host, 3, lambda: task(host, "steady").get("attempt-id") != first["attempt-id"])
        assert seen["taskmanager-id"] != first["taskmanager-id"]
        host.run("systemctl", "stop", unit, "minflinkd", timeout=150)
        assert host.tries("pgrep", "--list-full", "--euid", "minflinkd").stdout == ""
        assert [shown(host, "Result", each) for each in (unit, "minflinkd")] == ["success", "success"]
