"""What a daemon does to a state directory that is not its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.config import load_config
from minflinkd.daemon import READY_FILE, Daemon
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
