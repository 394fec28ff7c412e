"""A daemon as a process: signals, sd_notify, and reloading the configuration."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import structlog

from minflinkd.config import Config, load_config
from minflinkd.config.reload import changes
from minflinkd.config.taskmanager_options import Driver
from minflinkd.daemon import Daemon, DaemonInfo
from minflinkd.daemon_elected import ElectedDaemon, new_daemon
from minflinkd.daemon_ending import Ending, ending_of_signal
from minflinkd.runtime import crash_points
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.garbage import collect_seldom, keep_all
from minflinkd.runtime.sdnotify import SystemdNotifier

CLOSING = 60.0  # seconds that systemd gives the daemon to end, on top of `on-stop.timeout`

log = structlog.get_logger(__name__)


async def serve(
    config: Config,
    *,
    environ: Mapping[str, str],
    config_file: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    ready: Callable[[DaemonInfo], None] | None = None,
) -> None:
    """Run a daemon until SIGTERM, SIGINT or a handover; SIGHUP reloads the configuration.

    Raises MinflinkError, OSError.
    """
    crash_points.announce()
    collect_seldom()
    stop = asyncio.Event()
    reload = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    systemd = SystemdNotifier(environ)
    async with new_daemon(config, environ) as daemon:
        daemon.tasks.loop("systemd watchdog", systemd.feed_watchdog)
        daemon.tasks.loop("reload", lambda: _reload(daemon, reload, systemd, environ, config_file, overrides or {}))
        keep_all()
        systemd.ready(_status(daemon))
        if isinstance(daemon, ElectedDaemon):
            daemon.tasks.loop("status", lambda: _tell_status(daemon, systemd))
        log.info("ready", url=daemon.info.url, state=str(daemon.state_directory))
        if ready is not None:
            ready(daemon.info)
        ending = await _told_to_end(stop, daemon, environ)
        if daemon.crash_cause is not None:
            daemon.hand_over()
            raise daemon.crash_cause  # systemd starts the next one, which adopts the tasks
        log.info("stopping", ending=ending.value)
        if ending is Ending.HANDOVER:
            systemd.stopping("handing over")
            daemon.hand_over()
        else:
            systemd.stopping(within=daemon.config.cluster.on_stop_timeout + CLOSING)
            stop.clear()
            await first_of(daemon.before_stop(), stop.wait())  # a second signal ends the wait


async def _told_to_end(stop: asyncio.Event, daemon: Daemon | ElectedDaemon, environ: Mapping[str, str]) -> Ending:
    await first_of(stop.wait(), daemon.handover_asked.wait(), daemon.crashed.wait())
    if daemon.crashed.is_set():
        return Ending.HANDOVER
    in_pods = daemon.config.resourcemanager.driver is Driver.KUBERNETES
    return Ending.HANDOVER if daemon.handover_asked.is_set() else await ending_of_signal(environ, in_pods=in_pods)


async def first_of(*ways: Coroutine[Any, Any, object]) -> None:
    """Return when one of these has ended, and cancel the others. Raises what the first ones raised."""
    tasks = {asyncio.ensure_future(way) for way in ways}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _reload(
    daemon: Daemon | ElectedDaemon,
    wanted: asyncio.Event,
    systemd: SystemdNotifier,
    environ: Mapping[str, str],
    file: Path | None,
    overrides: Mapping[str, str],
) -> None:
    while True:
        await wanted.wait()
        wanted.clear()
        systemd.reloading()
        await daemon.read_tokens_again()  # also if the configuration is wrong: a revoked token must end
        try:
            found = changes(daemon.config, load_config(file, environ, overrides))
        except MinflinkError as error:
            log.error("the configuration was not reloaded", error=str(error))
        else:
            daemon.apply(found.config)
            log.info("configuration reloaded", applied=found.live, needs_restart=found.restart)
        systemd.ready(_status(daemon))


def _status(daemon: Daemon | ElectedDaemon) -> str:
    return daemon.status if isinstance(daemon, ElectedDaemon) else f"leading; {daemon.info.url}"


async def _tell_status(daemon: ElectedDaemon, systemd: SystemdNotifier) -> None:
    while True:
        await daemon.changed.wait()
        systemd.status(daemon.status)
