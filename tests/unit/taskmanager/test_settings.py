"""What a TaskManager is told about its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.config.load import parse_config
from minflinkd.runtime.ids import ResourceId
from minflinkd.taskmanager.settings import DaemonAddress, read_settings, settings_of, write_settings


@pytest.mark.parametrize("enabled", [True, False])
def test_a_taskmanager_is_told_whether_to_merge_files(tmp_path: Path, enabled: bool) -> None:
    """F9, E20"""
    settings = settings_of(
        parse_config(f"execution.checkpointing.file-merging.enabled: {str(enabled).lower()}", {}, {}),
        resource_id=ResourceId("tm-" + "1" * 32),
        daemon=DaemonAddress(host="127.0.0.1", port=1, secret_file=tmp_path / "secret"),
        directory=tmp_path,
        registration_timeout=1.0,
    )
    write_settings(settings, tmp_path / "taskmanager.json")
    assert read_settings(tmp_path / "taskmanager.json").file_merging_enabled is enabled
