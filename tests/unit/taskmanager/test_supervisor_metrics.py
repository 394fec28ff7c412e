"""What a TaskManager's heartbeats report of its requests to storages."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.config import load_config
from minflinkd.runtime.ids import ResourceId
from minflinkd.taskmanager.standalone import standalone_settings
from minflinkd.taskmanager.supervisor import TaskManager


@pytest.mark.asyncio
async def test_requests_to_storages_are_among_the_metrics(tmp_path: Path) -> None:
    """Requests are counted where they are made, also in processes other than the daemon (S6)."""
    (tmp_path / "cluster.secret").write_text("s" * 64)
    config = load_config(None, {}, {"jobmanager.rpc.port": "6123", "process.working-dir": str(tmp_path)})
    manager = TaskManager(standalone_settings(config, {}, ResourceId("tm-one")))
    await manager._storages.at(f"file://{tmp_path}/one").create_exclusive(b"12345")
    metrics = {name: value for name, value in manager.metrics().items() if name.startswith("storage.")}
    assert metrics.pop("storage.file.create_exclusive.seconds") > 0
    assert metrics == {"storage.file.create_exclusive.requests": 1.0, "storage.file.create_exclusive.bytes": 5.0}
    await manager.aclose()
