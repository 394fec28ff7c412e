"""`minflinkd plugins`: the storage backends that are installed."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

import click
import msgspec

from minflinkd.cli.text import print_json, print_table

GROUP = "minflinkd.storage"


class Plugin(msgspec.Struct, frozen=True, rename="kebab"):
    scheme: str
    target: str
    package: str
    version: str
    problem: str = ""  # why it cannot be used


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plugins(as_json: bool) -> None:
    """List the storage backends by URI scheme, and whether each can be loaded.

    \b
    Examples:
      minflinkd plugins
      minflinkd plugins --json | jq '.[] | select(.problem != "")'
    """
    found = [_plugin(point) for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)]
    if as_json:
        print_json(found)
        return
    columns = ["SCHEME", "PACKAGE", "VERSION", "STATE"]
    rows = ([plugin.scheme, plugin.package, plugin.version, plugin.problem or "ok"] for plugin in found)
    print_table(columns, rows, empty="No storage backend is installed; is minflinkd itself?")


def _plugin(point: EntryPoint) -> Plugin:
    try:
        point.load()
        problem = ""
    except Exception as error:  # a third party's code: whatever it raises, the others are still listed
        problem = f"cannot be loaded: {type(error).__name__}: {error}"
    package = point.dist.name if point.dist else "?"
    return Plugin(point.name, point.value, package, point.dist.version if point.dist else "?", problem)
