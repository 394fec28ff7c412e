"""The launcher of a daemon that starts no TaskManagers."""

from __future__ import annotations

import pytest

from minflinkd.resourcemanager.launcher import StartFailed, TaskManagerLauncher
from minflinkd.resourcemanager.standalone import StandaloneLauncher
from minflinkd.runtime.ids import ResourceId


async def test_a_start_is_refused_with_what_to_do_instead() -> None:
    """The error says how a TaskManager is started; otherwise users would wait for one that never comes (R5, R7)."""
    launcher: TaskManagerLauncher = StandaloneLauncher()
    with pytest.raises(StartFailed, match=r"resourcemanager\.driver: standalone") as refused:
        await launcher.start(ResourceId("tm-1"))
    assert "minflinkd taskmanager" in refused.value.hint


async def test_it_has_and_ends_nothing() -> None:
    """TaskManagers that somebody else started outlive the daemon (R7)."""
    launcher: TaskManagerLauncher = StandaloneLauncher()
    await launcher.stop(ResourceId("tm-1"), kill=True)
    await launcher.stop_all()
    await launcher.reap_leftovers()
    assert await launcher.adopt() == ()
    await launcher.aclose()
