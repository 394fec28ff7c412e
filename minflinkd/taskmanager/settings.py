"""What a TaskManager process is told when it starts: one JSON file, written by the daemon (or by an operator's)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import ResourceId, parse_resource_id
from minflinkd.runtime.units import encode_unit


class InvalidSettings(MinflinkError):
    code = "taskmanager-settings"


class TaskManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, sizes in bytes, all paths absolute."""

    resource_id: ResourceId
    daemon_host: str
    daemon_port: int
    secret_file: str
    slots: int
    working_directory: str  # of this TaskManager alone; removed with it
    log_directory: str
    state_directory: str  # queries' checkpoint directories and local snapshots; one file system, for hard links
    blob_url: str  # of the BlobServer
    blob_fetch_retries: int = 5
    blob_store: str = ""  # URI of the HA store of blobs
    spark_master: str = ""
    heap_bytes: int = 1024**3
    spark_conf: dict[str, str] = {}
    heartbeat_timeout: float = 5.0
    session_start_timeout: float = 90.0
    session_timeout: float = 60.0  # a session child that answers no ping for so long is replaced
    session_stopped_timeout: float = 5.0  # one whose process (or JVM) is stopped by a signal for so long
    slot_hold_timeout: float = 30.0
    registration_timeout: float = 0.0  # 0: never gives up
    task_cancellation_timeout: float = 30.0
    file_merging_max_file_size: int = 256 * 1024**2
    log_json: bool = False


def write_settings(settings: TaskManagerSettings, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(settings, enc_hook=encode_unit), indent=2))


def read_settings(path: Path) -> TaskManagerSettings:
    """Raises InvalidSettings."""
    try:
        settings = msgspec.json.decode(path.read_bytes(), type=TaskManagerSettings)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidSettings(
            f"{path}: {error}", hint="the daemon writes this file; start TaskManagers by it"
        ) from error
    parse_resource_id(settings.resource_id)
    return settings


def read_secret(path: Path) -> bytes:
    """The cluster's secret. Raises InvalidSettings."""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise InvalidSettings(f"the cluster's secret cannot be read: {error}") from error
    if len(secret) < 32:
        raise InvalidSettings(f"{path} holds {len(secret)} bytes; a cluster's secret has at least 32")
    return secret
