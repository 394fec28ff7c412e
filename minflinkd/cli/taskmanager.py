"""`minflinkd taskmanager`: one TaskManager as a foreground process, on the daemon's host or another."""

from __future__ import annotations

import os
from pathlib import Path

import click

from minflinkd.cli.check_config import parse_overrides
from minflinkd.cli.drain import drain
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.groups import Group
from minflinkd.cli.starting import told


@click.group(cls=Group, invoke_without_command=True)
@click.option(
    "-c",
    "--config",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Configuration file, as for `serve`. Default: $MINFLINKD_CONFIG, or /etc/minflinkd/minflinkd.yaml.",
)
@click.option("-D", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override an option.")
@click.option(
    "--resource-id", metavar="ID", help="Its name: tm-, then small letters, digits and -. Default: a random one."
)
@click.option(
    "--managed",
    is_flag=True,
    help="The daemon has started it, in a Pod: end if its session does not start, or if no daemon takes it for 10 min.",
)
@click.pass_context
def taskmanager(
    context: click.Context, file: Path | None, overrides: tuple[str, ...], resource_id: str | None, managed: bool
) -> None:
    """Run one TaskManager, until SIGTERM, Ctrl-C or the daemon ends it. It registers with the daemon.

    To end a running TaskManager after its jobs have moved to others, use the subcommand `drain`.

    It finds the daemon by jobmanager.rpc.address and jobmanager.rpc.port, and proves that it belongs to the cluster by
    the secret in security.secret-file, a copy of the daemon's. Its slots and its session are those of taskmanager.*.
    It waits for the daemon without end, unless taskmanager.registration.timeout is set. It logs to stderr.

    \b
    Exit codes: 0 it was told to end; 2 the configuration is wrong; 3 no daemon took it within
    taskmanager.registration.timeout; 6 it could not start.

    \b
    Examples:
      minflinkd taskmanager --config minflinkd.yaml
      minflinkd taskmanager -D jobmanager.rpc.address=10.0.0.5 -D jobmanager.rpc.port=6123 \\
          -D security.secret-file=/etc/minflinkd/cluster.secret
      minflinkd taskmanager drain tm-3f --wait
    """
    if context.invoked_subcommand is not None:
        return
    import asyncio

    from minflinkd.config import ConfigError, load_config
    from minflinkd.config.load import configuration_file
    from minflinkd.runtime import log
    from minflinkd.runtime.crash_points import UnusableCrashPoint
    from minflinkd.runtime.doorkeeper import raise_file_limit
    from minflinkd.runtime.errors import InvalidId
    from minflinkd.runtime.ids import IdSource, parse_resource_id
    from minflinkd.runtime.private_files import make_private
    from minflinkd.taskmanager.process import CannotGoOn
    from minflinkd.taskmanager.settings import InvalidSettings
    from minflinkd.taskmanager.standalone import ResourceIdTaken, serve

    try:
        config = load_config(file or configuration_file(os.environ), os.environ, parse_overrides(overrides))
        chosen = parse_resource_id(resource_id) if resource_id is not None else IdSource().resource()
    except (ConfigError, InvalidId) as error:
        raise Failure(f"The TaskManager cannot run: {error}", ExitCode.REFUSED) from error
    make_private(os.environ)
    raise_file_limit()
    as_json = log.as_json(config.log.format.value)
    log.configure(json=as_json, level=config.log.level.value)
    codes = (
        (InvalidSettings, ExitCode.REFUSED),
        (ResourceIdTaken, ExitCode.REFUSED),
        (UnusableCrashPoint, ExitCode.REFUSED),
        (CannotGoOn, ExitCode.UNREACHABLE),
    )
    with told("The TaskManager cannot run", as_json=as_json, codes=codes):
        asyncio.run(serve(config, environ=os.environ, resource_id=chosen, managed=managed))


taskmanager.add_command(drain)
