"""Exit codes, and the errors that end a command."""

from __future__ import annotations

from enum import IntEnum

import click

from minflinkd.runtime.errors import Consequence, Kind, MinflinkError


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


_BY_KIND = {Kind.NOT_FOUND: ExitCode.NOT_FOUND, Kind.CONFLICT: ExitCode.CONFLICT}
_BY_STATUS = {404: ExitCode.NOT_FOUND, 409: ExitCode.CONFLICT, 503: ExitCode.UNREACHABLE}


def of_status(status: int) -> ExitCode:
    """Return the exit code for an error answer of the endpoint."""
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ExitCode.REFUSED if status < 500 else ExitCode.DAEMON_FAILED


def of_error(error: MinflinkError) -> ExitCode:
    """Return the exit code for an error that is not an answer of the endpoint."""
    info = error.info()
    if info.kind in _BY_KIND:
        return _BY_KIND[info.kind]
    return ExitCode.UNREACHABLE if info.consequence is Consequence.RETRYABLE else ExitCode.REFUSED


class Failure(click.ClickException):
    """Ends a command with a message on stderr and an exit code."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click declares it a class variable, but reads it from the instance
