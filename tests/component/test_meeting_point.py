"""Whether the TaskManagers that an earlier daemon left are kept for the next one, or ended."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from minflinkd import __version__
from minflinkd.config import load_config
from minflinkd.daemon import Daemon
from minflinkd.ha.meeting_point import FILE, MeetingPoint, last_meeting_point
from minflinkd.resourcemanager.process import ProcessLauncher
from minflinkd.rpc.protocol_range import SPOKEN
from minflinkd.runtime.ids import ResourceId
from tests.cluster import free_port
from tests.waiting import until

TM = ResourceId("tm-0123456789ab")


def met(*, port: int = 1, oldest: int = 1, newest: int = 1, version: str = "", tls: bool = False) -> MeetingPoint:
    return MeetingPoint(port=port, oldest=oldest, newest=newest, version=version, tls=tls)


@pytest.mark.parametrize(
    ("last", "here", "found"),
    [
        (met(), met(), True),
        (met(version="0.1.0"), met(version="0.2.0"), True),
        (met(), met(oldest=1, newest=2), True),  # an upgrade
        (met(oldest=2, newest=3), met(oldest=1, newest=2), True),  # back to the version before
        (met(), met(oldest=2, newest=3), False),  # a version was left out
        (met(port=1), met(port=2), False),
        (met(tls=True), met(tls=True), True),
        (met(), met(tls=True), False),
        (met(tls=True), met(), False),
    ],
)
def test_a_daemon_that_speaks_a_version_of_the_last_one_is_found(
    last: MeetingPoint, here: MeetingPoint, found: bool
) -> None:
    """The version of the package does not matter. A connection with TLS is none without (A15a, E42)."""
    assert last.finds(here) is found


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        ({"oldest": SPOKEN.oldest - 1, "newest": SPOKEN.newest, "version": "0.0.9"}, True),
        ({"oldest": SPOKEN.newest, "newest": SPOKEN.newest + 1, "version": "99.0", "of a later version": 1}, True),
        ({"oldest": SPOKEN.newest + 1, "newest": SPOKEN.newest + 2, "version": "99.1"}, False),
        ({"version": "no range"}, False),
    ],
)
async def test_the_next_daemon_keeps_taskmanagers_that_can_speak_with_it_and_ends_the_others(
    tmp_path: Path, last: dict[str, object], kept: bool
) -> None:
    """An upgrade leaves tasks running; TaskManagers that nobody could speak with must not go on unseen (A15a)."""
    launcher = ProcessLauncher(
        directory=tmp_path / "taskmanagers", command=lambda *_: ["sleep", "60"], on_exit=lambda *_: None
    )
    await launcher.start(TM)
    (left,) = launcher.living()
    await launcher.aclose()
    port = free_port()
    (tmp_path / FILE).write_bytes(msgspec.json.encode({"port": port, **last}))
    options = {
        "process.working-dir": str(tmp_path),
        "rest.port": "0",
        "jobmanager.rpc.port": str(port),
        "resourcemanager.standby-taskmanagers": "0",
    }
    async with Daemon(load_config(None, {}, options), {}):
        if kept:
            assert runs(left.pid)
        else:
            await until(lambda: not runs(left.pid))
        assert last_meeting_point(tmp_path) == met(
            port=port, oldest=SPOKEN.oldest, newest=SPOKEN.newest, version=__version__
        )
    await until(lambda: not runs(left.pid))


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
