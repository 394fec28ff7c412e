"""`minflinkd tls`: certificates for a cluster."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import click

from minflinkd.cli.exits import ExitCode, Failure

CA, CA_KEY = "ca.pem", "ca-key.pem"
KINDS = ("internal", "rest")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@click.group()
def tls() -> None:
    """Make certificates, so that what the processes of a cluster send is encrypted. Each command has --json.

    \b
    Examples:
      minflinkd tls init /etc/minflinkd/tls --host a.example --host 10.0.0.1
    """


@tls.command("init")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A host name or address to put into them.")
@click.option("--days", default=365, show_default=True, type=click.IntRange(1, 3650), help="How long they are valid.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def init(directory: Path, hosts: tuple[str, ...], days: int, as_json: bool) -> None:
    """Make a small CA in DIRECTORY, and two certificates: for the processes among themselves, and for HTTP.

    Loopback names and the name of this host are always in them; name each other host by --host. If DIRECTORY has a CA
    already, it stays, and signs new certificates: processes that run use them from their next connection on.

    Copy all but ca-key.pem to each host. Whoever has ca-key.pem can make certificates: keep it elsewhere. Give ca.pem
    to clients (--ca-file).

    \b
    Exit codes: 0 done; 2 the files cannot be written, or the CA cannot be read.
    \b
    Examples:
      minflinkd tls init tls
      minflinkd tls init /etc/minflinkd/tls --host a.example --host b.example --days 90
    """
    from minflinkd.cli.small_ca import issue, new_ca, read_ca  # slow to import

    names = tuple(dict.fromkeys((*LOOPBACK, socket.gethostname(), *hosts)))
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = (directory / CA_KEY).exists()
        if kept:
            ca = read_ca(directory / CA, directory / CA_KEY)
        else:
            if (directory / CA).exists():
                raise Failure(
                    f"{directory / CA} exists, and its key {CA_KEY} does not: bring the key here, or use another "
                    "directory",
                    ExitCode.REFUSED,
                )
            ca = new_ca()
            ca.write(directory / CA, directory / CA_KEY)
        for kind in KINDS:
            issued = issue(ca, f"minflinkd {kind}", names, days=days)
            issued.write(directory / f"{kind}.pem", directory / f"{kind}-key.pem")
    except (OSError, ValueError) as error:
        raise Failure(f"the certificates cannot be made in {directory}: {error}", ExitCode.REFUSED) from error
    _print(directory, names, kept=kept, as_json=as_json)


def _print(directory: Path, names: tuple[str, ...], *, kept: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"directory": str(directory), "hosts": names, "newCa": not kept}))
        return
    at = os.path.abspath(directory)
    click.echo(
        f"{'New certificates' if kept else 'A CA and certificates'} for {', '.join(names)}. In the configuration:"
    )
    click.echo(
        "\n".join(
            (
                "security.ssl.internal.enabled: true",
                f"security.ssl.internal.certificate: {at}/internal.pem",
                f"security.ssl.internal.key: {at}/internal-key.pem",
                f"security.ssl.internal.ca: {at}/{CA}",
                "security.ssl.rest.enabled: true",
                f"security.ssl.rest.certificate: {at}/rest.pem",
                f"security.ssl.rest.key: {at}/rest-key.pem",
                f"security.ssl.rest.ca: {at}/{CA}",
            )
        )
    )
