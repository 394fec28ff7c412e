"""`minflinkd check-config`: would the daemon start with this configuration?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minflinkd.cli.output import output_options, print_json

if TYPE_CHECKING:
    from minflinkd.config import Config, ConfigError


@click.command("check-config")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("-D", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override an option.")
@output_options
@click.pass_context
def check_config(context: click.Context, file: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Check a configuration, and show what differs from the defaults and where it was set.

    The default of FILE is what `minflinkd serve` would read: $MINFLINKD_CONFIG, or /etc/minflinkd/minflinkd.yaml.
    Overrides from the environment (MINFLINKD_...) apply, as they do for the daemon.

    \b
    Exit codes: 0 the daemon starts with it; 2 it does not, and every fault is named.
    \b
    Examples:
      minflinkd check-config
      minflinkd check-config new.yaml --json
    """
    from minflinkd.config import ConfigError, load_config
    from minflinkd.config.load import Fault, configuration_file

    file = file or configuration_file(os.environ)
    try:
        config = load_config(file, os.environ, parse_overrides(overrides))
    except ConfigError as error:
        _print_faults(error, as_json=as_json)
        context.exit(2)
    if problem := _run_as_problem(config):
        fault = Fault(str(file or ""), "taskmanager.run-as", config.taskmanager.run_as, problem)
        _print_faults(ConfigError([fault]), as_json=as_json)
        context.exit(2)
    _print_config(config, file, as_json=as_json)


def _run_as_problem(config: Config) -> str:
    """Return why sessions cannot run as another user; empty if they can, as far as this process can tell.

    A unit may have rights that whoever checks its configuration does not have.
    """
    from minflinkd.runtime.errors import MinflinkError
    from minflinkd.runtime.system_user import may_act_as_others, system_user
    from minflinkd.taskmanager.child.run_as import check_run_as

    name = config.taskmanager.run_as
    try:
        if name and may_act_as_others():
            check_run_as(name, config.taskmanager.local_state_dir)
        elif name:
            system_user(name)
    except MinflinkError as error:
        return f"{error.message} ({error.hint})"
    return ""


def parse_overrides(arguments: tuple[str, ...]) -> dict[str, str]:
    """Return the values of `--set KEY=VALUE`. Raises click.BadParameter."""
    overrides = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise click.BadParameter(f"{argument!r} is not KEY=VALUE", param_hint="--set")
        overrides[key.strip()] = value
    return overrides


def _print_faults(error: ConfigError, *, as_json: bool) -> None:
    if as_json:
        faults = [{"origin": f.origin, "key": f.key, "value": f.value, "problem": f.problem} for f in error.faults]
        print_json({"valid": False, "code": error.code, "faults": faults})
    else:
        click.echo(f"Error: {error}", err=True)


def _print_config(config: Config, file: Path | None, *, as_json: bool) -> None:
    items = config.as_items()
    changed = [item for item in items if not item.is_default]
    if as_json:
        values = {item.key: item.value for item in changed}
        origins = {item.key: [str(one) for one in item.origins] for item in items if item.origins}
        print_json({"valid": True, "file": str(file) if file else None, "changed": values, "origins": origins})
        return
    click.echo(f"{file or 'The defaults'}: no faults; {len(changed)} of {len(items)} options changed.")
    for item in changed:
        click.echo(f"  {item.key}: {item.value}  ({', '.join(map(str, item.origins))})")
