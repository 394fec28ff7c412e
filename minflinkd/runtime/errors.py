"""Errors with a stable code, a consequence and a next step.

Defines what an error *is* and how it crosses a process boundary; does not log it.
"""

from __future__ import annotations

import traceback
from enum import StrEnum
from typing import ClassVar

import msgspec

_IN_A_LINE = 200  # characters


def in_a_line(message: str) -> str:
    """Return the first line of a message, shortened. An error may end with a piece of a log."""
    line = message.strip().partition("\n")[0]
    return line if len(line) <= _IN_A_LINE else f"{line[:_IN_A_LINE]}..."


class Consequence(StrEnum):
    """What the receiver of an error can do about it. Retry loops look at nothing else."""

    RETRYABLE = "retryable"  # the same request may succeed later
    REFUSED = "refused"  # understood and refused; the same request will be refused again
    FENCED = "fenced"  # the sender (or the receiver) acts for a replaced leader
    FATAL = "fatal"  # retrying does not help; somebody must act


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An error in the form in which it is stored, shown over HTTP and sent between processes."""

    code: str
    message: str
    consequence: Consequence = Consequence.FATAL
    hint: str = ""
    traceback: str = ""  # of user code or of Spark; never of the daemon itself

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}" + (f" ({self.hint})" if self.hint else "")


class MinflinkError(Exception):
    """Base of all errors that minflinkd raises on purpose.

    `code` is stable and documented in docs/errors.md. `hint` says what to do next.
    """

    code: ClassVar[str] = "internal"
    consequence: ClassVar[Consequence] = Consequence.FATAL

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def info(self) -> ErrorInfo:
        return ErrorInfo(code=self.code, message=self.message, consequence=self.consequence, hint=self.hint)


class RemoteError(MinflinkError):
    """An error that another party answered. Keeps that party's code, consequence and traceback."""

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message, hint=error.hint)
        self.error = error

    def info(self) -> ErrorInfo:
        return self.error


class InvalidId(MinflinkError):
    """A text that is not an id of the expected kind. Raised before the text gets near a path."""

    code = "invalid-id"
    consequence = Consequence.REFUSED


class NotFound(MinflinkError):
    code = "not-found"
    consequence = Consequence.REFUSED


class Conflict(MinflinkError):
    """The target of a request exists, but its state does not allow the request."""

    code = "conflict"
    consequence = Consequence.REFUSED


def error_info(error: BaseException, *, with_traceback: bool = False) -> ErrorInfo:
    """Describe any exception. Foreign ones get the code `internal`. Ask for a traceback only if user code failed."""
    info = error.info() if isinstance(error, MinflinkError) else None
    if info is None:
        text = str(error) or type(error).__name__
        info = ErrorInfo(code="internal", message=f"{type(error).__name__}: {text}")
    if with_traceback and not info.traceback:
        info = msgspec.structs.replace(info, traceback="".join(traceback.format_exception(error)))
    return info
