"""What systemd is told about the daemon."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minflinkd.runtime.sdnotify import SystemdNotifier


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A real datagram socket as systemd has it, with $NOTIFY_SOCKET set to it."""
    name = str(tmp_path / "notify") if request.param == "path" else "@minflinkd-test-" + secrets.token_hex(8)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name[1:] if name.startswith("@") else name)
        sock.settimeout(5)
        yield sock, name


def test_every_state_arrives_in_systemds_words(systemd: tuple[socket.socket, str]) -> None:
    """The unit has Type=notify (E25)."""
    sock, name = systemd
    notifier = SystemdNotifier({"NOTIFY_SOCKET": name})
    heard = []
    calls: tuple[Callable[[], None], ...] = (
        lambda: notifier.ready("leading,\n3 jobs"),
        lambda: notifier.status("4 jobs"),
        notifier.watchdog,
        notifier.stopping,
    )
    for call in calls:
        call()
        heard.append(sock.recv(4096).decode())
    assert heard == ["READY=1\nSTATUS=leading, 3 jobs", "STATUS=4 jobs", "WATCHDOG=1", "STOPPING=1"]


def test_a_reload_carries_the_time_that_systemd_orders_messages_by(systemd: tuple[socket.socket, str]) -> None:
    """A reload is reported with the time by which systemd orders messages (E25)."""
    sock, name = systemd
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    SystemdNotifier({"NOTIFY_SOCKET": name}).reloading()
    state, _, stamp = sock.recv(4096).decode().partition("\n")
    assert state == "RELOADING=1"
    assert before <= int(stamp.removeprefix("MONOTONIC_USEC=")) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def test_without_systemd_and_with_a_systemd_that_is_gone_nothing_happens(tmp_path: Path) -> None:
    """The daemon also runs in a terminal, and survives a restart of systemd (E25)."""
    SystemdNotifier({}).ready("leading")
    SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).watchdog()


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_twice_in_its_time_where_it_watches_this_process(
    environ: dict[str, str], interval: float | None
) -> None:
    """The unit has WatchdogSec (E25)."""
    assert SystemdNotifier(environ).watchdog_interval == interval
