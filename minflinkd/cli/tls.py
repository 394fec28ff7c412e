"""`minflinkd tls`: certificates for a cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.groups import Group
from minflinkd.cli.output import output_options, print_json

if TYPE_CHECKING:
    from minflinkd.cli.small_ca import Issued

CA, CA_KEY = "ca.pem", "ca-key.pem"
CLIENT_CA, CLIENT_CA_KEY = "client-ca.pem", "client-ca-key.pem"
KINDS = ("internal", "rest")
_TAKEN = ("ca", "client-ca", *KINDS)  # names of files in the same directory
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@click.group(cls=Group)
def tls() -> None:
    """Make certificates, so that what the processes of a cluster send is encrypted. Each command has --json.

    \b
    Examples:
      minflinkd tls init /etc/minflinkd/tls --host a.example --host 10.0.0.1
      minflinkd tls client clients ci
    """


@tls.command("init")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="A host name or address to put into them.")
@click.option("--days", default=365, show_default=True, type=click.IntRange(1, 3650), help="How long they are valid.")
@output_options
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
    from minflinkd.cli.small_ca import issue  # slow to import

    names = tuple(dict.fromkeys((*LOOPBACK, socket.gethostname(), *hosts)))
    with _told(directory):
        ca, kept = _ca(directory, CA, CA_KEY)
        for kind in KINDS:
            issued = issue(ca, f"minflinkd {kind}", names, days=days)
            issued.write(directory / f"{kind}.pem", directory / f"{kind}-key.pem")
    _print(directory, names, kept=kept, as_json=as_json)


@tls.command("client")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.argument("name")
@click.option("--days", default=90, show_default=True, type=click.IntRange(1, 3650), help="How long it is valid.")
@output_options
def client(directory: Path, name: str, days: int, as_json: bool) -> None:
    """Make a certificate in DIRECTORY by which the client NAME shows the HTTP endpoint who it is.

    It comes from a CA for clients alone, which is made in DIRECTORY if it is not there. So no client can pass for a
    process of the cluster, or the other way round. Give client-ca.pem to the daemons, and NAME.pem and NAME-key.pem to
    the client. Whoever has client-ca-key.pem can make certificates: keep it elsewhere.

    \b
    Exit codes: 0 done; 2 the files cannot be written, or the CA cannot be read.
    \b
    Examples:
      minflinkd tls client clients ci
      minflinkd tls client clients ci --days 30
    """
    from minflinkd.cli.small_ca import issue  # slow to import
    from minflinkd.rest.identity.tokens import is_name

    if not is_name(name) or name in _TAKEN or name.endswith("-key"):
        raise Failure(
            f"{name!r} is not a name that is allowed.\nLetters, digits, . _ - are; but {', '.join(_TAKEN)} and ...-key "
            "are names of other files.",
            ExitCode.REFUSED,
        )
    with _told(directory):
        ca, kept = _ca(directory, CLIENT_CA, CLIENT_CA_KEY, "minflinkd client CA")
        certificate, key = directory / f"{name}.pem", directory / f"{name}-key.pem"
        issue(ca, name, (), days=days).write(certificate, key)
    if as_json:
        print_json({"certificate": str(certificate), "key": str(key), "newCa": not kept})
        return
    click.echo(
        "\n".join(
            (
                f"{certificate} and {key} for {name}. In the daemon's configuration:",
                "security.ssl.rest.client-certificates: optional",
                f"security.ssl.rest.client-ca: {os.path.abspath(directory)}/{CLIENT_CA}",
                f"Say what it may do: minflinkd token create {name} --role ROLE --certificate CN:{name}",
                f"Use it: minflinkd list --url https://HOST:8081 --cert-file {certificate} --key-file {key}",
            )
        )
    )


@contextmanager
def _told(directory: Path) -> Iterator[None]:
    """Raises Failure if files cannot be made or read."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield
    except (OSError, ValueError) as error:
        raise Failure(f"the certificates cannot be made in {directory}: {error}", ExitCode.REFUSED) from error


def _ca(directory: Path, certificate: str, key: str, name: str = "minflinkd CA") -> tuple[Issued, bool]:
    """Return the CA in the directory, and whether it was there; otherwise it is made.

    Raises Failure, OSError, ValueError.
    """
    from minflinkd.cli.small_ca import new_ca, read_ca

    if (directory / key).exists():
        return read_ca(directory / certificate, directory / key), True
    if (directory / certificate).exists():
        raise Failure(
            f"{directory / certificate} exists, and its key {key} does not: bring the key here, or use another "
            "directory",
            ExitCode.REFUSED,
        )
    ca = new_ca(name)
    ca.write(directory / certificate, directory / key)
    return ca, False


def _print(directory: Path, names: tuple[str, ...], *, kept: bool, as_json: bool) -> None:
    if as_json:
        print_json({"directory": str(directory), "hosts": names, "newCa": not kept})
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
