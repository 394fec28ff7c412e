"""`minflinkd token`: who may use the HTTP endpoint. Edits the file of the tokens on the daemon's host."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from minflinkd.cli.check_config import parse_overrides
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.groups import Group
from minflinkd.cli.output import output_options

if TYPE_CHECKING:
    from minflinkd.rest.identity.tokens import TokenRecord

F = TypeVar("F", bound=Callable[..., Any])
_LONGEST = 100 * 365 * 86400.0  # seconds
ROLES = ("view", "operate", "submit", "admin")


@click.group(cls=Group)
def token() -> None:
    """Make, list and revoke tokens for the HTTP endpoint. Each command has --json.

    Run it on the daemon's host, as the daemon's user or root.

    \b
    Examples:
      minflinkd token create prometheus --role view
      minflinkd token create ci --role submit --jobs 'etl-*' --expires '90 d'
      minflinkd token create deploy --role submit --certificate CN:deploy
      minflinkd token list
      minflinkd token revoke ci
    """


def file_options(command: F) -> F:
    """Add the options that say which file it is, which the command gets as `file`, and --json."""

    def with_file(
        *args: Any,
        file: Path | None,
        config: Path | None,
        overrides: tuple[str, ...],
        state_dir: Path | None,
        **kw: Any,
    ) -> Any:
        return command(*args, file=file or _file(config, overrides, state_dir), **kw)

    with_file.__name__, with_file.__doc__ = command.__name__, command.__doc__
    with_file = output_options(with_file)
    for option in (
        click.option(
            "--state-dir", type=click.Path(file_okay=False, path_type=Path), help="The daemon's state directory."
        ),
        click.option("-D", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override an option."),
        click.option(
            "-c",
            "--config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="The daemon's configuration file. Default: as for serve.",
        ),
        click.option(
            "--file",
            type=click.Path(dir_okay=False, path_type=Path),
            help="The file of the tokens. Default: what the configuration says (security.tokens-file).",
        ),
    ):
        option(with_file)
    return cast(F, with_file)


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), required=True, help="What it may do; each role includes the former.")
@click.option("--jobs", multiple=True, metavar="PATTERN", help="Only jobs whose name matches, such as 'etl-*'.")
@click.option("--expires", metavar="DURATION", help="After which time it ends, such as '90 d'. Default: never.")
@click.option(
    "--certificate",
    metavar="NAME",
    help="Make no token, but say whose this client's certificate is: CN:ci, DNS:ci.example, email:... or URI:...",
)
@file_options
def create(
    name: str,
    role: str,
    jobs: tuple[str, ...],
    expires: str | None,
    certificate: str | None,
    file: Path,
    as_json: bool,
) -> None:
    """Make a token and print it. It is shown only now: the file has a hash of it.

    view reads; operate also cancels, stops, rescales and takes savepoints; submit also runs code; admin does the rest.
    The daemon takes the token after a reload.

    With --certificate there is no token: who shows a certificate with that name, from the CA of
    security.ssl.rest.client-ca, is NAME. `minflinkd tls client` makes certificates.

    \b
    Exit codes: 0; 2 the name or the certificate is taken, or the file cannot be used.
    \b
    Examples:
      minflinkd token create deploy --role submit --certificate CN:deploy
      (umask 077; minflinkd token create prometheus --role view > minflinkd.token)
      minflinkd token create ci --role submit --jobs 'etl-*' --expires '90 d' --json
    """
    from minflinkd.rest.identity.certificates import full_name
    from minflinkd.rest.identity.tokens import Token, TokenRecord, new_hash, problem_of

    new, now = Token.new(), datetime.now(UTC).replace(microsecond=0)
    record = TokenRecord(
        name=name,
        id=new.id,
        role=role,
        jobs=jobs,
        created=now,
        expires=None if expires is None else now + _time(expires),
        hash="" if certificate is not None else new_hash(new.secret),
        certificate="" if certificate is None else full_name(certificate),
    )
    if problem := problem_of(record):
        raise Failure(f"The entry would have {problem}.", ExitCode.REFUSED)
    with _edited(file) as records:
        if any(each.name == name for each in records):
            raise Failure(
                f"There is a token {name!r} already.\nRevoke it first, or take another name.", ExitCode.REFUSED
            )
        if record.certificate and any(each.certificate == record.certificate for each in records):
            raise Failure(
                f"The certificate {record.certificate} is that of another entry already.\n"
                "`minflinkd token list` shows whose: revoke it first.",
                ExitCode.REFUSED,
            )
        records.append(record)
    if as_json:
        from minflinkd.cli.output import print_json

        proof = {"certificate": record.certificate} if record.certificate else {"token": new.text}
        print_json({"name": name, "role": role, "jobs": jobs, "expires": record.expires, **proof})
    elif record.certificate:
        click.echo(f"Who shows the certificate {record.certificate} is {name}. {_reload(file)}")
    else:
        click.echo(new.text)
        click.echo(f"This is the only time that it is shown. {_reload(file)}", err=True)


@token.command("list")
@file_options
def list_tokens(file: Path, as_json: bool) -> None:
    """List the tokens, and the certificates of clients, with their roles.

    The daemon's own token, which has the role admin, is not in the file.

    \b
    Examples:
      minflinkd token list
      minflinkd token list --json | jq '.[] | select(.expires != null)'
    """
    from minflinkd.cli.output import print_json
    from minflinkd.cli.text import print_table

    with _told():
        from minflinkd.rest.identity.tokens import read_tokens

        records = read_tokens(file)
    now = datetime.now(UTC)
    if as_json:
        print_json(
            [
                {
                    "name": r.name,
                    "role": r.role,
                    "jobs": r.jobs,
                    "certificate": r.certificate or None,
                    "created": r.created,
                    "expires": r.expires,
                }
                for r in records
            ]
        )
        return
    columns = ["NAME", "ROLE", "JOBS", "CREATED", "EXPIRES", "CERTIFICATE"]
    rows = [
        [r.name, r.role, ", ".join(r.jobs) or "all", _day(r.created), _expiry(r, now), r.certificate or "-"]
        for r in records
    ]
    print_table(columns, rows, empty=f"No tokens in {file}.")


@token.command()
@click.argument("name")
@file_options
def revoke(name: str, file: Path, as_json: bool) -> None:
    """Delete a token, or the entry of a certificate.

    It is valid until the daemon is reloaded; then its sessions in browsers end, too.

    \b
    Exit codes: 0; 2 the file cannot be used; 4 there is no such token.
    \b
    Examples:
      minflinkd token revoke ci && systemctl reload minflinkd
    """
    with _edited(file) as records:
        left = [each for each in records if each.name != name]
        if len(left) == len(records):
            raise Failure(
                f"There is no token {name!r} in {file}.\n`minflinkd token list` lists them.", ExitCode.NOT_FOUND
            )
        records[:] = left
    if as_json:
        from minflinkd.cli.output import print_json

        print_json({"name": name, "revoked": True})
    else:
        click.echo(f"{name} is revoked. {_reload(file)}")


@contextmanager
def _told() -> Iterator[None]:
    """Raises Failure if the file cannot be used."""
    from minflinkd.runtime.errors import MinflinkError

    try:
        yield
    except MinflinkError as error:
        info = error.info()
        raise Failure(f"{info.message}\n{info.hint}", ExitCode.REFUSED) from error
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}", ExitCode.REFUSED) from error


@contextmanager
def _edited(file: Path) -> Iterator[list[TokenRecord]]:
    """Yield the tokens of the file, and write them again. Two commands wait for each other."""
    from minflinkd.rest.identity.tokens import read_tokens, write_tokens

    if not file.parent.is_dir():
        raise Failure(
            f"There is no directory {file.parent} for the file of the tokens.\n"
            "Name the daemon's configuration with --config, or its state directory with --state-dir.",
            ExitCode.REFUSED,
        )
    with _told():
        directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            records = list(read_tokens(file))
            yield records
            write_tokens(file, tuple(records))
        finally:
            os.close(directory)


def _file(config: Path | None, overrides: tuple[str, ...], state_dir: Path | None) -> Path:
    from minflinkd.config import ConfigError, load_config
    from minflinkd.config.directories import state_directory, tokens_file
    from minflinkd.config.load import configuration_file

    settings = parse_overrides(overrides)
    if state_dir is not None:
        settings["process.working-dir"] = str(state_dir.resolve())
    try:
        loaded = load_config(config or configuration_file(os.environ), os.environ, settings)
    except ConfigError as error:
        raise Failure(str(error), ExitCode.REFUSED) from error
    return tokens_file(loaded, state_directory(loaded, os.environ), os.environ)


def _time(text: str) -> timedelta:
    from minflinkd.runtime.units import Duration, InvalidUnit

    try:
        seconds = Duration.parse(text)
    except InvalidUnit as error:
        raise Failure(f"--expires {text!r} is no duration.\nSuch as '90 d' or '12 h'.", ExitCode.REFUSED) from error
    return timedelta(seconds=min(seconds, _LONGEST))


def _reload(file: Path) -> str:
    return f"The daemon reads {file} again on SIGHUP: systemctl reload minflinkd."


def _day(moment: datetime | None) -> str:
    return "" if moment is None else moment.date().isoformat()


def _expiry(record: TokenRecord, now: datetime) -> str:
    if record.expires is None:
        return "never"
    return f"{_day(record.expires)}{' (expired)' if record.expires <= now else ''}"
