"""What all commands that talk to a daemon share: their options, their event loop, and how they end on an error."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from minflinkd.cli import completing
from minflinkd.cli.exits import ExitCode, Failure, failure_of, of_status, sentence
from minflinkd.cli.output import output_options
from minflinkd.cli.target import Target, target_of

if TYPE_CHECKING:
    from minflinkd.runtime.errors import MinflinkError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8081"
_OF_TARGET = ("context", "url", "token_file", "cert_file", "key_file", "ca_file")


class Connection(NamedTuple):
    """Where the daemon is, and in which form the user wants the answer."""

    target: Target
    timeout: float  # seconds for one request
    as_json: bool  # one document, JSON or YAML, instead of text for people

    def tell(self, phase: str) -> None:
        """Say on stderr what is done now; programs are not told."""
        if not self.as_json:
            click.echo(phase, err=True)

    def run(self, body: Callable[[Any], Awaitable[ExitCode | None]]) -> None:
        """Run `body(client)`, then end the command with its exit code, or with an error and its exit code."""
        import asyncio  # slow to import, as all of these: only commands that need a daemon pay for it

        import stamina

        from minflinkd.cli.client import Client
        from minflinkd.cli.credentials import Credentials
        from minflinkd.runtime.errors import MinflinkError
        from minflinkd.runtime.log import warnings_only

        stamina.instrumentation.set_on_retry_hooks([])  # it would log to the user's terminal
        at = self.target

        async def connected() -> ExitCode | None:
            credentials = Credentials(_path(at.token_file), cert_file=_path(at.cert_file), key_file=_path(at.key_file))
            async with Client(at.url, timeout=self.timeout, ca_file=at.ca_file, credentials=credentials) as client:
                return await body(client)

        try:
            with warnings_only():
                code = asyncio.run(connected())
        except MinflinkError as error:
            raise self.failure(error) from error
        except OSError as error:  # a file of the user's
            if error.errno == errno.EPIPE or error.filename is None:
                raise
            raise Failure(f"{error.filename}: {error.strerror}.", ExitCode.REFUSED) from error
        except KeyboardInterrupt:
            raise SystemExit(ExitCode.INTERRUPTED) from None
        if code:
            raise SystemExit(code)

    def failure(self, error: MinflinkError) -> Failure:
        """Return what a command prints on stderr: a sentence and a hint, or with --json the daemon's answer."""
        from minflinkd.cli.endpoint import DaemonUnreachable, Refused

        if isinstance(error, Refused):
            message = "\n".join(map(sentence, error.answer.errors))
            return Failure(message, of_status(error.status), answer=error.answer)
        named = self.target.context if isinstance(error, DaemonUnreachable) else None
        return failure_of(error, "" if named is None else f"The address is that of the context {named!r}.")


def connection_options(command: F) -> F:
    """Add the options of a connection, which the command gets as one `connection`."""

    @functools.wraps(command)
    def with_connection(*args: Any, timeout: float, as_json: bool, **kwargs: Any) -> Any:
        values = {name: kwargs.pop(name) for name in _OF_TARGET}
        target = target_of(click.get_current_context(), values, os.environ)
        return command(*args, connection=Connection(target, timeout, as_json), **kwargs)

    with_connection = output_options(with_connection)
    for option in (
        click.option("--timeout", default=30.0, show_default=True, metavar="SECONDS", help="For one request."),
        click.option(
            "--ca-file",
            envvar="MINFLINKD_CA_FILE",
            metavar="FILE",
            show_envvar=True,
            help="PEM file with the CA of the daemon's certificate, for an https URL. Default: this machine's CAs.",
        ),
        click.option(
            "--key-file",
            envvar="MINFLINKD_KEY_FILE",
            show_envvar=True,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="PEM file with the key of --cert-file. Default: it is in the same file.",
        ),
        click.option(
            "--cert-file",
            envvar="MINFLINKD_CERT_FILE",
            show_envvar=True,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="PEM file with a certificate that says who you are, for an https URL.",
        ),
        click.option(
            "--token-file",
            envvar="MINFLINKD_TOKEN_FILE",
            show_envvar=True,
            type=click.Path(path_type=Path),
            help="A file with the token. On the daemon's host root and the daemon's user need none.",
        ),
        click.option(
            "--context",
            metavar="NAME",
            shell_complete=completing.contexts,
            help="A cluster that `minflinkd context add` has named. Default: $MINFLINKD_CONTEXT, or the one in use.",
        ),
        click.option(
            "--url",
            envvar="MINFLINKD_URL",
            default=DEFAULT_URL,
            show_default=True,
            show_envvar=True,
            help="The daemon's HTTP endpoint. If there are several daemons, list all, separated by commas.",
        ),
    ):
        option(with_connection)
    return cast(F, with_connection)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None
