"""A daemon as a process: signals, sd_notify, and reloading the configuration."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from minflinkd.config import Config, load_config
from minflinkd.config.reload import changes
from minflinkd.daemon import Daemon, DaemonInfo
from minflinkd.runtime import crash_points
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.garbage import collect_seldom
from minflinkd.runtime.sdnotify import SystemdNotifier

log = structlog.get_logger(__name__)


async def serve(
    config: Config,
    *,
    environ: Mapping[str, str],
    config_file: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    ready: Callable[[DaemonInfo], None] | None = None,
) -> None:
    """Run a daemon until SIGTERM or SIGINT; SIGHUP reloads the configuration. Raises MinflinkError, OSError."""
    crash_points.announce()
    stop = asyncio.Event()
    reload = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    systemd = SystemdNotifier(environ)
    async with Daemon(config, environ) as daemon:
        daemon.tasks.loop("systemd watchdog", systemd.feed_watchdog)
        daemon.tasks.loop("reload", lambda: _reload(daemon, reload, systemd, environ, config_file, overrides or {}))
        collect_seldom()
        systemd.ready(f"leading; {daemon.info.url}")
        log.info("ready", url=daemon.info.url, state=str(daemon.state_directory))
        if ready is not None:
            ready(daemon.info)
        await stop.wait()
        systemd.stopping()
        log.info("stopping")


async def _reload(
    daemon: Daemon,
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
        try:
            found = changes(daemon.config, load_config(file, environ, overrides))
        except MinflinkError as error:
            log.error("the configuration was not reloaded", error=str(error))
        else:
            daemon.apply(found.config)
            log.info("configuration reloaded", applied=found.live, needs_restart=found.restart)
        systemd.ready(f"leading; {daemon.info.url}")
