"""Where files are stored if the options for that are empty."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from minflinkd.config.options import Config
from minflinkd.runtime import local_socket
from minflinkd.runtime.ids import ResourceId

NOTHING = "none"  # of an option whose empty value means a default place


def state_directory(config: Config, environ: Mapping[str, str]) -> Path:
    """Return `process.working-dir`, otherwise systemd's state directory, otherwise the user's."""
    if config.cluster.working_dir:
        return Path(config.cluster.working_dir).absolute()
    if granted := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(granted)
    home = Path(environ.get("HOME") or Path.home())
    return Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "minflinkd"


def checkpoint_uri(config: Config, state: Path) -> str:
    """Return `execution.checkpointing.dir`, otherwise a directory in the state directory."""
    return config.checkpointing.dir or f"file://{state / 'checkpoints'}"


def savepoint_uri(config: Config, state: Path) -> str:
    """Return `execution.checkpointing.savepoint-dir`, otherwise one below the checkpoints' or the state directory.

    The checkpoints' directory is durable, and the daemon may write there.
    """
    checkpoints = config.checkpointing
    if checkpoints.savepoint_dir:
        return checkpoints.savepoint_dir
    return f"{checkpoints.dir.rstrip('/')}/savepoints" if checkpoints.dir else f"file://{state / 'savepoints'}"


def ha_storage_uri(config: Config, state: Path) -> str:
    """Return `high-availability.storageDir`, otherwise a directory in the state directory."""
    return config.cluster.storage_dir or f"file://{state / 'ha'}"


def secret_file(config: Config, state: Path) -> Path:
    """Return `security.secret-file`, otherwise a file in the state directory."""
    return Path(config.security.secret_file) if config.security.secret_file else state / "cluster.secret"


def tokens_file(config: Config, state: Path, environ: Mapping[str, str]) -> Path:
    """Return `security.tokens-file`, otherwise systemd's credential, otherwise a file in the state directory."""
    if config.security.tokens_file:
        return Path(config.security.tokens_file)
    if credentials := environ.get("CREDENTIALS_DIRECTORY", ""):
        given = Path(credentials) / "tokens"
        if given.exists():
            return given
    return state / "tokens.json"


def audit_log(config: Config, state: Path) -> Path | None:
    """Return `security.audit-log`, otherwise a file in the state directory. None: nothing is written down."""
    if config.security.audit_log == NOTHING:
        return None
    return Path(config.security.audit_log) if config.security.audit_log else state / "audit.log"


def socket_directory(config: Config, environ: Mapping[str, str]) -> Path | None:
    """Return where the Unix socket of the HTTP endpoint is. None: there is none."""
    if config.security.socket_directory == NOTHING:
        return None
    given = config.security.socket_directory
    return Path(given).absolute() if given else local_socket.directory(environ)


def blob_directory(config: Config, state: Path, cluster_id: str) -> Path:
    """Return the cluster's directory in `blob.storage.directory`, otherwise a directory in the state directory.

    Daemons of several clusters may be given one directory. Each would delete what it does not know.
    """
    return Path(config.blob.storage_directory) / cluster_id if config.blob.storage_directory else state / "blobs"


def task_managers(state: Path) -> Path:
    """Return the parent of the TaskManagers' working directories."""
    return state / "taskmanagers"


def class_archives(config: Config, state: Path) -> Path | None:
    """Return `taskmanager.session.class-archive.dir`, otherwise a directory in the state directory; None: not used."""
    session = config.taskmanager.session
    if not session.class_archive:
        return None
    if session.class_archive_dir:
        return Path(session.class_archive_dir).absolute()
    if config.taskmanager.run_as:  # the user of sessions does not reach the state directory
        return Path(config.taskmanager.local_state_dir).absolute() / "class-archives"
    return state / "class-archives"


def local_state(config: Config, resource_id: ResourceId) -> Path | None:
    """Return where a TaskManager keeps its running state: below `taskmanager.state.local.root-dir`.

    None: in its working directory.
    """
    root = config.taskmanager.local_state_dir
    return Path(root).absolute() / resource_id if root else None
