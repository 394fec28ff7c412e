"""A TaskManager started by hand, by systemd or in a Pod, on any host (R7): its settings, directory and end.

It keeps its files where the daemon's TaskManagers do, under `taskmanagers/` of the state directory. It may share that
directory with them and with other standalone ones. It holds the file `lock` in its own directory for as long as it
lives. So later ones can tell which were killed, and remove what is left of them.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

import structlog

from minflinkd.config import Config
from minflinkd.config import directories as where
from minflinkd.config.resources import resources_of
from minflinkd.ha.embedded import usable
from minflinkd.runtime import homes
from minflinkd.runtime import log as logging
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.host_resources import host_resources
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.private_files import close_to_others
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile
from minflinkd.runtime.sdnotify import SystemdNotifier
from minflinkd.runtime.system_user import call_as, system_user
from minflinkd.taskmanager.child.java import check_java
from minflinkd.taskmanager.child.run_as import check_run_as
from minflinkd.taskmanager.process import run
from minflinkd.taskmanager.settings import DaemonAddress, InvalidSettings, TaskManagerSettings, settings_of
from minflinkd.taskmanager.supervisor import TaskManager

log = structlog.get_logger(__name__)

MANAGED_REGISTRATION_TIMEOUT = 600.0  # seconds without a daemon, after which one that is managed ends
LOCK = "lock"
LOG = "taskmanager.log"


class ResourceIdTaken(MinflinkError):
    code = "resource-id-taken"
    consequence = Consequence.REFUSED


def standalone_settings(
    config: Config,
    environ: Mapping[str, str],
    resource_id: ResourceId,
    host: ResourceProfile = NO_PROFILE,
    *,
    managed: bool = False,
) -> TaskManagerSettings:
    """Return the settings of a TaskManager that has its own configuration, on a host that has so much.

    `managed`: the daemon has started it, and replaces it. Then its slots have what the options state, as the daemon
    expects; with what the host of its Pod has besides, they would count as larger ones (R40). Raises InvalidSettings.
    """
    daemon = config.jobmanager
    if daemon.rpc_port.fixed is None:
        raise InvalidSettings(
            f"jobmanager.rpc.port ({daemon.rpc_port}) does not say where the daemon is",
            hint="set the same port for the daemon and its TaskManagers",
        )
    state = where.state_directory(config, environ)
    return settings_of(
        config,
        resource_id=resource_id,
        daemon=DaemonAddress(
            host=daemon.rpc_address or daemon.bind_host,
            port=daemon.rpc_port.fixed,
            secret_file=where.secret_file(config, state),
        ),
        directory=where.task_managers(state) / resource_id,
        class_archives=where.class_archives(config, state),
        registration_timeout=MANAGED_REGISTRATION_TIMEOUT if managed else 0.0,
        standalone=not managed,
        profile=resources_of(config, NO_PROFILE if managed else host).share(config.taskmanager.number_of_task_slots),
    )


async def serve(config: Config, *, environ: Mapping[str, str], resource_id: ResourceId, managed: bool = False) -> None:
    """Run one TaskManager until SIGTERM, SIGINT or the ResourceManager ends it. It logs to stderr and to its own file.

    One that is `managed` is started and replaced by the daemon: it also ends if its session does not start.

    Raises InvalidSettings, NoJava, JavaTooOld, NoSuchUser, CannotRunAs, UnusableStateDirectory, ResourceIdTaken,
    CannotGoOn, OSError.
    """
    state = where.state_directory(config, environ)
    host = await asyncio.to_thread(host_resources, where.local_state(config, resource_id) or state)
    settings = standalone_settings(config, environ, resource_id, host, managed=managed)
    await asyncio.to_thread(check_java, os.environ)  # the session inherits the environment
    await asyncio.to_thread(check_run_as, settings.run_as, config.taskmanager.local_state_dir)
    systemd = SystemdNotifier(environ)

    def started(manager: TaskManager) -> None:
        manager.tasks.loop("systemd watchdog", systemd.feed_watchdog)
        daemon = f"{settings.daemon_host}:{settings.daemon_port}"
        systemd.ready(f"{resource_id}; daemon at {daemon}")
        log.info("started", resource=resource_id, daemon=daemon, directory=settings.working_directory)

    with _home(config, settings), _logging(config, Path(settings.log_directory)):
        await run(settings, started=started)
        systemd.stopping()
        log.info("ended", resource=resource_id)


@contextmanager
def _home(config: Config, settings: TaskManagerSettings) -> Iterator[None]:
    """Keep the TaskManager's directory while it runs. Only its log remains afterwards.

    Raises ResourceIdTaken, UnusableStateDirectory, OSError.
    """
    home = Path(settings.log_directory).parent
    with usable(home.parent.parent):
        home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone_in(home.parent):
        lock = _lock(home)
        if lock is None:
            raise ResourceIdTaken(
                f"a TaskManager {home.name} runs here already", hint="leave out --resource-id, or take another one"
            )
        _remove_ended(config, home.parent)
    try:
        (home / homes.LOGS).mkdir(exist_ok=True)
        yield
    finally:
        with _alone_in(home.parent):
            _remove(config, home)
            os.close(lock)


def _remove_ended(config: Config, directory: Path) -> None:
    """Remove what is left of TaskManagers that were killed."""
    for home in homes.homes(directory):
        if (home / LOCK).exists() and (lock := _lock(home)) is not None:
            log.info("a TaskManager was killed; its files are removed", resource=home.name)
            _remove(config, home)
            os.close(lock)
    homes.prune(directory)


def _remove(config: Config, home: Path) -> None:
    homes.strip(home)
    if (state := where.local_state(config, ResourceId(home.name))) is not None:
        user = system_user(config.taskmanager.run_as) if config.taskmanager.run_as else None
        try:
            call_as(user, lambda: homes.remove(state))
        except OSError as error:
            log.warning("files of a TaskManager are left", directory=str(state), error=str(error))


def _lock(home: Path) -> int | None:
    """Lock the directory. Return None if its TaskManager lives."""
    home.mkdir(mode=0o700, exist_ok=True)
    close_to_others(home)
    lock = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Let only one process at a time make and remove directories here."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def _logging(config: Config, directory: Path) -> Iterator[None]:
    """Log to stderr, and to the file that `minflinkd logs` shows."""
    json, level = logging.as_json(config.log.format.value), config.log.level.value
    with (directory / LOG).open("a", encoding="utf-8") as file:
        logging.configure(json=json, level=level, stream=cast(TextIO, _Both(sys.stderr, file)))
        try:
            yield
        finally:
            logging.configure(json=json, level=level)


class _Both(io.TextIOBase):
    """A stream that writes to several others."""

    def __init__(self, *streams: TextIO) -> None:
        self._streams = streams

    def write(self, text: str) -> int:
        for stream in self._streams:
            stream.write(text)
        return len(text)

    def flush(self) -> None:
        for stream in self._streams:
            stream.flush()
