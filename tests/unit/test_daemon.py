"""What a daemon does to a state directory: to one that is not its own, and to what an earlier one left in its own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from minflinkd.config import load_config
from minflinkd.daemon import MEETING_FILE, READY_FILE, Daemon, MeetingPoint
from minflinkd.ha.embedded import StateDirectory, StateDirectoryTaken


async def test_a_daemon_that_is_refused_leaves_the_other_ones_address_alone(tmp_path: Path) -> None:
    """A10: the clients of the daemon that leads find it by this file."""
    config = load_config(None, {}, {"process.working-dir": str(tmp_path)})
    daemon = Daemon(config, {})
    leader = StateDirectory(daemon.state_directory)
    leader.take()
    ready = daemon.state_directory / READY_FILE
    ready.write_text("{}")
    with pytest.raises(StateDirectoryTaken):
        await daemon.start()
    assert ready.read_text() == "{}"
    leader.release()


async def _rpc_port_of_a_daemon(state: Path, **options: str) -> int:
    settings = {"process.working-dir": str(state), "rest.port": "0", "resourcemanager.standby-taskmanagers": "0"}
    async with Daemon(load_config(None, {}, settings | options), {}) as daemon:
        return daemon.rpc.endpoint[1]


async def test_task_managers_find_the_next_daemon_at_the_port_of_the_last(tmp_path: Path) -> None:
    """R7, A6: also where the option takes any free port."""
    first = await _rpc_port_of_a_daemon(tmp_path)
    assert await _rpc_port_of_a_daemon(tmp_path) == first


async def test_a_daemon_takes_no_port_that_its_options_do_not_allow(tmp_path: Path) -> None:
    """R7: the port of the last one gives way to the configuration."""
    first = await _rpc_port_of_a_daemon(tmp_path)
    other = first + 1 if first < 65000 else first - 100
    assert await _rpc_port_of_a_daemon(tmp_path, **{"jobmanager.rpc.port": f"{other}-{other + 50}"}) != first


@pytest.mark.parametrize("content", [b"", b"{", msgspec.json.encode(MeetingPoint(0, "0.0.1"))])
async def test_an_unreadable_or_foreign_meeting_point_is_replaced(tmp_path: Path, content: bytes) -> None:
    """A12: a torn file costs the TaskManagers that would have been met, and nothing else."""
    (tmp_path / MEETING_FILE).write_bytes(content)
    port = await _rpc_port_of_a_daemon(tmp_path)
    assert msgspec.json.decode((tmp_path / MEETING_FILE).read_bytes(), type=MeetingPoint).port == port
