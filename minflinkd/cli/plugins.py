"""`minflinkd plugins`: the installed storage backends, and what each can do."""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import click
import msgspec

from minflinkd.cli.check_config import parse_overrides
from minflinkd.cli.exits import ExitCode, Failure, failure_of
from minflinkd.cli.output import output_options, print_json
from minflinkd.cli.text import print_table
from minflinkd.config import ConfigError, load_config
from minflinkd.config.load import configuration_file
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.log import warnings_only
from minflinkd.storage.probe import Finding, capabilities, probe
from minflinkd.storage.registry import GROUP, Storages, UnknownScheme, backend_class


class Plugin(msgspec.Struct, frozen=True, rename="kebab"):
    scheme: str
    target: str
    package: str
    version: str
    capabilities: dict[str, bool] = {}  # as declared; `--check` tests them
    problem: str = ""  # why it cannot be used
    install: str = ""  # what to do about it


@click.command()
@click.option("--check", "uri", metavar="URI", help="Test which declared capabilities hold at a real place.")
@click.option(
    "--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="For --check: the options storage.*."
)
@click.option("-D", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="For --check: override an option.")
@output_options
@click.pass_context
def plugins(
    context: click.Context, uri: str | None, file: Path | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """List the storage backends by URI scheme: what each can do, and whether it can be loaded.

    With --check, some small objects are written, read and deleted in a new directory below URI, as the daemon would do
    with the same configuration.

    \b
    Exit codes: 0; with --check 2 if a declared capability does not hold, 3 if the storage does not answer.
    \b
    Examples:
      minflinkd plugins
      minflinkd plugins --json | jq '.[] | select(.problem != "")'
      minflinkd plugins --check s3://bucket/jobs
    """
    if uri is None:
        _list(as_json=as_json)
        return
    try:
        config = load_config(file or configuration_file(os.environ), os.environ, parse_overrides(overrides))
        with warnings_only():
            findings = asyncio.run(_check(uri, dict(config.storage.options)))
    except ConfigError as error:
        raise Failure(str(error), ExitCode.REFUSED) from error
    except MinflinkError as error:
        raise failure_of(error) from error
    if as_json:
        print_json(findings)
    else:
        rows = ([one.name, "yes" if one.declared else "no", _outcome(one)] for one in findings)
        print_table(["CAPABILITY", "DECLARED", "SHOWN"], rows, empty="")
    if any(one.declared and not one.holds for one in findings):
        context.exit(ExitCode.REFUSED)


def _list(*, as_json: bool) -> None:
    found = [_plugin(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)]
    if as_json:
        print_json(found)
        return
    columns = ["SCHEME", "PACKAGE", "VERSION", "STATE", "CAPABILITIES"]
    rows = ([one.scheme, one.package, one.version, _state(one), _declared(one)] for one in found)
    print_table(columns, rows, empty="No storage backend is installed; is minflinkd itself?")


def _plugin(point: EntryPoint) -> Plugin:
    package, version = (point.dist.name, point.dist.version) if point.dist else ("?", "?")
    try:
        kind = backend_class(point)
    except UnknownScheme as error:
        return Plugin(point.name, point.value, package, version, problem=error.message, install=error.hint)
    return Plugin(point.name, point.value, package, version, capabilities(kind))


async def _check(uri: str, options: dict[str, str]) -> list[Finding]:
    storages = Storages(options)
    try:
        return [finding async for finding in probe(storages.at(uri))]
    finally:
        await storages.aclose()


def _state(plugin: Plugin) -> str:
    if not plugin.problem:
        return "ok"
    return plugin.problem + (f"; {plugin.install}" if plugin.install else "")


def _declared(plugin: Plugin) -> str:
    return ", ".join(name for name, declared in plugin.capabilities.items() if declared)


def _outcome(finding: Finding) -> str:
    return "yes" if finding.holds else finding.problem or "-"
