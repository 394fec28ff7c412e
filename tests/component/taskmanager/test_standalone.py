"""A TaskManager that somebody starts by hand, up to where it would connect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from minflinkd.config import Config, load_config
from minflinkd.runtime import homes
from minflinkd.runtime.ids import ResourceId
from minflinkd.taskmanager.settings import InvalidSettings, TaskManagerSettings
from minflinkd.taskmanager.standalone import serve, standalone_settings

TM, OTHER = ResourceId("tm-one"), ResourceId("tm-other")


@pytest.fixture(autouse=True)
def logging() -> Iterator[None]:
    """Logging is set up once in a process, and a test must undo it."""
    yield
    structlog.reset_defaults()


def settings_in(state: Path, resource_id: ResourceId = TM, **more: str) -> tuple[Config, TaskManagerSettings]:
    made = load_config(None, {}, {"jobmanager.rpc.port": "6123", "process.working-dir": str(state)} | more)
    return made, standalone_settings(made, {}, resource_id)


async def test_without_the_secret_nothing_is_left_behind(tmp_path: Path) -> None:
    """A start without the secret is refused before the TaskManager uses the network (R7)."""
    made, settings = settings_in(tmp_path)
    with pytest.raises(InvalidSettings, match="secret"):
        await serve(made, environ={}, resource_id=TM)
    home = Path(settings.working_directory)
    assert [entry.name for entry in home.iterdir()] == [homes.LOGS]
