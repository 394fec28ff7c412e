"""Exit codes, and the errors that end a command: all look the same (E10).

    Error: There is no job 'clicls'.
    Did you mean 'clicks'? `minflinkd list --all` lists them.

With --json or --output it is one document on stderr, with a stable `code`: docs/errors.md.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import click

from minflinkd.cli.output import Output, document, wanted

if TYPE_CHECKING:
    from minflinkd.rest.schemas import ErrorAnswer
    from minflinkd.runtime.errors import MinflinkError

_WORD = re.compile(r"[a-z]+(?=[ ,;]|$)")  # no name of a file, option or host


class ExitCode(IntEnum):
    """Exit codes, documented in docs/cli.md. Scripts rely on them."""

    OK = 0
    JOB_ENDED_BADLY = 1  # the awaited job is FAILED or CANCELED
    REFUSED = 2  # a wrong command line, or the daemon refused the request because of its faults
    UNREACHABLE = 3  # no daemon answers, or it is not ready
    NOT_FOUND = 4
    CONFLICT = 5  # the state of the target does not allow the request
    DAEMON_FAILED = 6  # an internal error of the daemon; see its log
    INTERRUPTED = 130


_BY_STATUS = {404: ExitCode.NOT_FOUND, 409: ExitCode.CONFLICT, 503: ExitCode.UNREACHABLE}


def of_status(status: int) -> ExitCode:
    """Return the exit code for an error answer of the endpoint."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ExitCode.REFUSED if status < 500 else ExitCode.DAEMON_FAILED


def of_error(error: MinflinkError) -> ExitCode:
    """Return the exit code for an error that is not an answer of the endpoint."""
    from minflinkd.runtime.errors import Consequence, Kind

    info = error.info()
    by_kind = {Kind.NOT_FOUND: ExitCode.NOT_FOUND, Kind.CONFLICT: ExitCode.CONFLICT}
    if info.kind in by_kind:
        return by_kind[info.kind]
    return ExitCode.UNREACHABLE if info.consequence is Consequence.RETRYABLE else ExitCode.REFUSED


class Failure(click.ClickException):
    """Ends a command with a message on stderr and an exit code.

    The first line of the message says what is wrong, the others what to do next.
    """

    def __init__(self, message: str, code: ExitCode, *, answer: ErrorAnswer | None = None) -> None:
        """`answer`: what programs get, with --json; by default it is made from the message."""
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click declares it a class variable, but reads it from the instance
        self._answer = answer
        self._form = wanted()

    def show(self, file: Any = None) -> None:
        if self._form is Output.TABLE:
            super().show(file)
        else:
            click.echo(document(self._answer or self._told(), self._form), file=file, err=file is None)

    def _told(self) -> ErrorAnswer:
        from minflinkd.rest.schemas import ErrorAnswer

        first, _, others = self.message.partition("\n")
        return ErrorAnswer(errors=(first,), code=_code_of(ExitCode(self.exit_code)), hint=others)


def _code_of(exit_code: ExitCode) -> str:
    """Return the code of an error that a command found by itself."""
    from minflinkd.cli.endpoint import DaemonUnreachable
    from minflinkd.rest.errors import InvalidRequest
    from minflinkd.runtime.errors import Conflict, NotFound

    by_exit: dict[ExitCode, type[MinflinkError]] = {
        ExitCode.NOT_FOUND: NotFound,
        ExitCode.CONFLICT: Conflict,
        ExitCode.UNREACHABLE: DaemonUnreachable,
        ExitCode.REFUSED: InvalidRequest,
    }
    return by_exit[exit_code].code if exit_code in by_exit else "internal"


def failure_of(error: MinflinkError, more: str = "") -> Failure:
    """Return how a command ends that has met this error, which is no answer of the endpoint. `more`: a last line."""
    from minflinkd.rest.schemas import ErrorAnswer

    info = error.info()
    answer = ErrorAnswer(
        errors=(info.message,), code=info.code, consequence=info.consequence, kind=info.kind, hint=info.hint
    )
    lines = map(sentence, filter(None, (info.message, info.hint, more)))
    return Failure("\n".join(lines), of_error(error), answer=answer)


def sentence(text: str) -> str:
    """Return a message as a sentence: errors begin with a small letter, as they are parts of longer ones in logs."""
    text = text.strip()
    first, newline, others = text.partition("\n")
    if _WORD.match(first):
        first = first[0].upper() + first[1:]
    if not newline and first[-1:].isalnum() and "/" not in first.rsplit(" ", 1)[-1]:
        first += "."
    return first + newline + others
