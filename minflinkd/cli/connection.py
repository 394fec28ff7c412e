"""What all commands that talk to a daemon share: their options, their event loop, and how they end on an error."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from minflinkd.cli.exits import ExitCode, Failure, of_error, of_status
from minflinkd.runtime.errors import MinflinkError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8081"


@dataclass(frozen=True)
class Connection:
    """Where the daemon is, and in which form the user wants the answer."""

    url: str  # or several, separated by commas
    timeout: float  # seconds for one request
    as_json: bool
    ca_file: str | None = None
    token_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def run(self, body: Callable[[Any], Awaitable[ExitCode | None]]) -> None:
        """Run `body(client)`, then end the command with its exit code, or with an error and its exit code."""
        import stamina  # slow to import: only commands that need a daemon pay for it

        from minflinkd.cli.client import Client
        from minflinkd.cli.credentials import Credentials
        from minflinkd.runtime.log import warnings_only

        stamina.instrumentation.set_on_retry_hooks([])  # it would log to the user's terminal

        async def connected() -> ExitCode | None:
            credentials = Credentials(self.token_file, cert_file=self.cert_file, key_file=self.key_file)
            client = Client(self.url, timeout=self.timeout, ca_file=self.ca_file, credentials=credentials)
            async with client as client:
                return await body(client)

        try:
            with warnings_only():
                code = asyncio.run(connected())
        except MinflinkError as error:
            raise self.failure(error) from error
        except KeyboardInterrupt:
            raise SystemExit(ExitCode.INTERRUPTED) from None
        if code:
            raise SystemExit(code)

    def failure(self, error: MinflinkError) -> Failure:
        """Return what a command prints on stderr: a sentence and a hint, or with --json the daemon's answer."""
        import msgspec

        from minflinkd.cli.endpoint import Refused

        if isinstance(error, Refused):
            answer: msgspec.Struct = error.answer
            message, code = "\n".join(error.answer.errors), of_status(error.status)
        else:
            from minflinkd.rest.schemas import ErrorAnswer

            info = error.info()
            answer = ErrorAnswer(
                errors=(info.message,), code=info.code, consequence=info.consequence, kind=info.kind, hint=info.hint
            )
            message = f"{info.message}\n{info.hint}" if info.hint else info.message
            code = of_error(error)
        return JsonFailure(msgspec.json.encode(answer).decode(), code) if self.as_json else Failure(message, code)


class JsonFailure(Failure):
    """An error of a command with --json."""

    def show(self, file: Any = None) -> None:
        click.echo(self.message, err=True)


def connection_options(command: F) -> F:
    """Add the options of a connection, which the command gets as one `connection`."""

    @functools.wraps(command)
    def with_connection(*args: Any, **kwargs: Any) -> Any:
        own = {field.name: kwargs.pop(field.name) for field in fields(Connection)}
        return command(*args, connection=Connection(**own), **kwargs)

    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document."),
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
