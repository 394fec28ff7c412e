"""`minflinkd context`: named clusters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minflinkd.cli import completing
from minflinkd.cli.contexts import Context, Contexts, check_name, read_contexts, shown, write_contexts
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.groups import Group
from minflinkd.cli.output import output_options, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=Group)
def context() -> None:
    """Name clusters, and choose the one that commands talk to. Each command has --json.

    A context is an address and the files that prove who you are. They are stored in ~/.config/minflinkd/contexts.json,
    for you alone. A token is never stored there: name its file.

    Where a command looks for the daemon, first match: --url; --context; $MINFLINKD_URL; $MINFLINKD_CONTEXT; the context
    in use; http://127.0.0.1:8081.

    \b
    Examples:
      minflinkd context add prod --address https://a:8081,https://b:8081 --token-file ~/.config/minflinkd/prod.token
      minflinkd context use prod
      minflinkd list --context staging
      minflinkd context list
    """


@context.command()
@click.argument("name")
@click.option("--address", required=True, metavar="URL", help="If there are several daemons, list all, with commas.")
@click.option("--token-file", type=_FILE, help="A file with the token, that only you can read.")
@click.option("--ca-file", type=_FILE, help="PEM file with the CA of the daemon's certificate.")
@click.option("--cert-file", type=_FILE, help="PEM file with a certificate that says who you are.")
@click.option("--key-file", type=_FILE, help="PEM file with the key of --cert-file.")
@click.option("--replace", is_flag=True, help="If there is a context of this name, change it to this.")
@click.option("--use", is_flag=True, help="Talk to this cluster from now on.")
@output_options
def add(
    name: str,
    address: str,
    token_file: Path | None,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    replace: bool,
    use: bool,
    as_json: bool,
) -> None:
    """Add a cluster as NAME. Nothing is asked of it. The first context is also the one in use.

    \b
    Exit codes: 0 done; 2 a wrong command line, or the token's file is open to others; 5 there is such a context.

    \b
    Examples:
      minflinkd context add local --address http://127.0.0.1:8081
      minflinkd context add prod --address https://a:8081,https://b:8081 --token-file prod.token --ca-file ca.pem
      minflinkd context add prod --address https://c:8081 --token-file prod.token --replace --use
    """
    known = read_contexts(os.environ)
    if check_name(name) in known.contexts and not replace:
        raise Failure(
            f"There is a context {name!r} already.\n--replace changes it; `minflinkd context list` shows it.",
            ExitCode.CONFLICT,
        )
    if token_file is not None:
        _check_token(token_file)
    files = [None if each is None else str(each.absolute()) for each in (token_file, ca_file, cert_file, key_file)]
    made = Context(_address(address), *files)
    current = name if use or known.current is None else known.current
    path = write_contexts(Contexts({**known.contexts, name: made}, current), os.environ)
    if as_json:
        print_json({"name": name, "in-use": current == name, **shown(made)})
    else:
        click.echo(f"{name} is stored in {path}{_in_use(name, current)}.")


def _in_use(name: str, current: str | None) -> str:
    return ", and is in use" if current == name else f"; in use is {current}"


def _check_token(file: Path) -> None:
    """Raises Failure."""
    from minflinkd.cli.exits import sentence
    from minflinkd.cli.token_file import UnfitFile, token_in

    try:
        token_in(file)
    except UnfitFile as error:
        raise Failure(f"{sentence(error.problem)}\n{sentence(error.hint)}", ExitCode.REFUSED) from error
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}.", ExitCode.REFUSED) from error


def _address(text: str) -> str:
    """Return the addresses with their schemes. Raises click.BadParameter."""
    return ",".join(_addresses(text))


def _addresses(text: str) -> Iterator[str]:
    from urllib.parse import urlsplit

    for part in filter(None, (part.strip().rstrip("/") for part in text.split(","))):
        url = part if "://" in part else f"http://{part}"
        parts = urlsplit(url)
        if parts.username or parts.password:
            raise click.BadParameter("an address has no user and no password", param_hint="--address")
        if not (parts.scheme in ("http", "https") and parts.hostname) and not url.startswith("unix:///"):
            raise click.BadParameter(f"{part!r} is no http, https or unix URL", param_hint="--address")
        yield url


@context.command()
@click.argument("name", required=False, shell_complete=completing.contexts)
@click.option("--none", is_flag=True, help="Use no context: the daemon of this machine.")
@output_options
def use(name: str | None, none: bool, as_json: bool) -> None:
    """Talk to the cluster NAME from now on, in all terminals.

    \b
    Examples:
      minflinkd context use prod
      minflinkd context use --none
    """
    if (name is None) is not none:
        raise click.UsageError("Name a context, or --none.")
    known = read_contexts(os.environ)
    if name is not None:
        known.named(name)
    write_contexts(known._replace(current=name), os.environ)
    if as_json:
        print_json({"in-use": name})
    else:
        click.echo("No context is in use." if name is None else f"{name} is in use: {known.contexts[name].address}.")


@context.command("list")
@output_options
def list_contexts(as_json: bool) -> None:
    """List the contexts; `*` marks the one in use.

    \b
    Examples:
      minflinkd context list
      minflinkd context list --json | jq -r '.[] | select(."in-use").address'
    """
    from minflinkd.cli.text import print_table

    known = read_contexts(os.environ)
    if as_json:
        print_json([{"name": n, "in-use": n == known.current, **shown(one)} for n, one in known.contexts.items()])
        return
    rows = [
        ["*" if name == known.current else "", name, one.address, one.token_file or "-", one.ca_file or "-"]
        for name, one in known.contexts.items()
    ]
    columns = ["", "NAME", "ADDRESS", "TOKEN FILE", "CA FILE"]
    print_table(columns, rows, empty="No contexts. `minflinkd context add NAME --address URL` adds one.")


@context.command()
@click.argument("name", shell_complete=completing.contexts)
@output_options
def remove(name: str, as_json: bool) -> None:
    """Forget the context NAME. Its files stay.

    \b
    Examples:
      minflinkd context remove staging
    """
    known = read_contexts(os.environ)
    known.named(name)
    others = {other: one for other, one in known.contexts.items() if other != name}
    current = None if known.current == name else known.current
    write_contexts(Contexts(others, current), os.environ)
    if as_json:
        print_json({"removed": name})
    else:
        click.echo(f"{name} is removed." + (" No context is in use now." if known.current == name else ""))
