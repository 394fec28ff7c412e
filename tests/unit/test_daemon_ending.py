"""What SIGTERM means to a daemon: by what systemd says of its unit, and without systemd (A15)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.daemon_ending import Ending, ending_of_jobs, ending_of_signal, is_of_user, unit_of

UNIT = "minflinkd.service"
SYSTEM = f"0::/system.slice/{UNIT}\n"
OF_USER = f"0::/user.slice/user-1000.slice/user@1000.service/app.slice/{UNIT}\n"
SESSION = "0::/user.slice/user-1000.slice/session-2.scope\n"


@pytest.mark.parametrize(
    ("jobs", "ending"),
    [
        (f"417 {UNIT} restart running\n", Ending.HANDOVER),
        (f"417 {UNIT} try-restart running\n", Ending.HANDOVER),
        (f"417 {UNIT} stop running\n", Ending.STOP),
        (f"417 {UNIT} start waiting\n", Ending.STOP),
        (f"416 other.service restart running\n417 {UNIT} stop running\n", Ending.STOP),
        (f"416 other.service stop running\n417 {UNIT} restart waiting\n", Ending.HANDOVER),
        ("No jobs running.\n", Ending.STOP),
        ("", Ending.STOP),
    ],
)
def test_a_restart_of_the_unit_is_a_handover_and_all_else_is_a_stop(jobs: str, ending: Ending) -> None:
    """A signal that systemd did not send comes from somebody who wants the daemon to stop (A15)."""
    assert ending_of_jobs(jobs, UNIT) is ending


@pytest.mark.parametrize(
    ("cgroup", "unit", "of_user"),
    [
        (SYSTEM, UNIT, False),
        (OF_USER, UNIT, True),
        (f"0::/system.slice/{UNIT}/tasks\n", UNIT, False),
        (f"12:cpu:/\n1:name=systemd:/system.slice/{UNIT}\n0::/\n", UNIT, False),
        (SESSION, None, False),
        ("0::/\n", None, False),
    ],
)
def test_the_unit_is_read_from_the_control_group(cgroup: str, unit: str | None, of_user: bool) -> None:
    assert (unit_of(cgroup), is_of_user(cgroup)) == (unit, of_user)


async def test_without_systemd_a_signal_is_a_stop(tmp_path: Path) -> None:
    """systemctl is not asked: the machine may not have it."""
    missing = tmp_path / "cgroup"
    assert await ending_of_signal({}, missing) is Ending.STOP


async def test_if_systemd_cannot_be_asked_a_signal_is_a_stop(tmp_path: Path) -> None:
    assert await ending_of_signal({"NOTIFY_SOCKET": "/run/notify"}, tmp_path / "missing") is Ending.STOP


async def test_a_daemon_with_taskmanagers_in_pods_hands_over_to_the_one_that_kubernetes_starts(tmp_path: Path) -> None:
    """Every restart of its Pod begins with SIGTERM (R50)."""
    assert await ending_of_signal({}, tmp_path / "missing", in_pods=True) is Ending.HANDOVER
