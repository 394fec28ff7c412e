"""`minflinkd serve`: the daemon as a foreground process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from minflinkd.cli.check_config import parse_overrides
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.starting import announce, told


@click.command()
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file. Default: $MINFLINKD_CONFIG, or /etc/minflinkd/minflinkd.yaml if it exists.",
)
@click.option("-D", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override an option.")
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The directory of jobs, checkpoints and blobs: process.working-dir.",
)
def serve(file: Path | None, overrides: tuple[str, ...], state_dir: Path | None) -> None:
    """Run the daemon until SIGTERM or Ctrl-C. SIGHUP reads the configuration again.

    It logs to stderr: readable lines on a terminal, JSON elsewhere (log.format). If Java is missing, a port is taken or
    a directory cannot be written, the daemon says so at once and does not start.

    \b
    Exit codes: 0 stopped by a signal; 2 the configuration is wrong, and every fault is named; 6 it could not start.

    \b
    Examples:
      minflinkd serve
      minflinkd serve --config minflinkd.yaml --state-dir /var/lib/minflinkd
      minflinkd serve -D rest.port=0 -D taskmanager.numberOfTaskSlots=4
    """
    import asyncio

    from minflinkd.config import ConfigError, load_config
    from minflinkd.config.load import configuration_file
    from minflinkd.daemon import DaemonInfo
    from minflinkd.daemon_process import serve as serve_daemon
    from minflinkd.runtime import log
    from minflinkd.runtime.doorkeeper import raise_file_limit
    from minflinkd.runtime.private_files import make_private

    file = file or configuration_file(os.environ)
    settings = parse_overrides(overrides)
    if state_dir is not None:
        settings["process.working-dir"] = str(state_dir.resolve())
    try:
        config = load_config(file, os.environ, settings)
    except ConfigError as error:
        hint = "`minflinkd check-config` checks it without starting anything."
        raise Failure(f"{error}\n{hint}", ExitCode.REFUSED) from error
    make_private(os.environ)
    raise_file_limit()
    as_json = log.as_json(config.log.format.value)
    log.configure(json=as_json, level=config.log.level.value, stream=log.keep_tail(sys.stderr))

    def ready(info: DaemonInfo) -> None:
        up = f"answers at {info.url}, and leads once it is elected" if info.elected else f"is ready at {info.url}"
        announce(f"minflinkd {up}; its state is in {info.state_directory}", as_json=as_json)
        if not info.asks:
            announce("It asks nobody for a token (security.allow-unauthenticated).", as_json=as_json)

    with told("The daemon cannot run", as_json=as_json):
        asyncio.run(serve_daemon(config, environ=os.environ, config_file=file, overrides=settings, ready=ready))
