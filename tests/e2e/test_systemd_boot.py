"""The shipped files under a real systemd from the boot on, without a TaskManager (A15, A19, E25)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minflinkd.cli.exits import ExitCode
from tests.servers.systemd import Host, booted
from tests.waiting import until

pytestmark = pytest.mark.slow

ALONE = "resourcemanager.driver: standalone\njobmanager.rpc.port: 6123\n"


def shown(host: Host, *names: str) -> list[str]:
    said = host.run("systemctl", "show", "minflinkd", *(f"--property={name}" for name in names))
    values = dict(line.split("=", 1) for line in said.splitlines())
    return [values[name] for name in names]


async def test_a_host_comes_up_with_a_daemon_that_leads_hands_over_and_refuses_a_bad_configuration(
    tmp_path: Path,
) -> None:
    """User and directories are made at the boot from sysusers and tmpfiles, before the enabled unit starts.

    A handover ends the unit, without a failure and for good. A configuration that is refused is not tried again; as
    soon as it is mended, the unit starts (A15, A19, E25).
    """
    with booted(tmp_path / "host", ALONE, enabled=["minflinkd"]) as host:
        await until(lambda: shown(host, "ActiveState") == ["active"], "the daemon has come up at the boot", timeout=60)
        assert "minflinkd" not in Path("/etc/passwd").read_text()
        assert host.run("getent", "passwd", "minflinkd").split(":")[5] == "/var/lib/minflinkd"
        owners = host.run("stat", "--format=%n %U %G %a", "/etc/minflinkd", "/var/lib/minflinkd", "/run/minflinkd")
        assert owners.splitlines() == [
            "/etc/minflinkd root minflinkd 750",
            "/var/lib/minflinkd minflinkd minflinkd 750",
            "/run/minflinkd minflinkd minflinkd 750",
        ]
        (pid, status, restarts) = shown(host, "MainPID", "StatusText", "NRestarts")
        assert (status.startswith("leading; http://"), restarts) == (True, "0")
        assert host.run("ps", "--no-headers", "-o", "user:20", pid) == "minflinkd"
        assert json.loads(host.minflinkd("info", "--json"))["minflinkd"]["leader"]["epoch"] == 1

        host.minflinkd("handover")
        await until(lambda: shown(host, "ActiveState", "Result") == ["inactive", "success"], "the unit has ended")
        host.run("systemctl", "start", "minflinkd", timeout=60)
        assert shown(host, "MainPID") not in (["0"], [pid])

        file = host.data.parent / "etc/minflinkd/minflinkd.yaml"
        file.write_text(ALONE + "heartbeat.timeout: soon\n")
        assert host.tries("systemctl", "restart", "minflinkd").returncode != 0
        ended = ["failed", "failed", "exit-code", str(int(ExitCode.REFUSED)), "0"]
        assert shown(host, "ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts") == ended
        assert "heartbeat.timeout" in host.journal("minflinkd")
        file.write_text(ALONE)
        host.run("systemctl", "start", "minflinkd", timeout=60)
        assert shown(host, "ActiveState") == ["active"]
