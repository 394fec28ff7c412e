"""Errors with a stable code, a consequence, a kind and a next step.

Defines what an error *is* and how it crosses a process boundary; does not log it.

The code is for people and for programs outside. Decisions read the consequence and the kind, which an error brings
along from where it was raised. So a new code cannot be forgotten in a list elsewhere.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from enum import StrEnum
from typing import ClassVar, TypeVar

import msgspec

E = TypeVar("E", bound="MinflinkError")

# What decoding raises for data from outside: no JSON or MessagePack, of another form, no UTF-8, or nested too deep.
MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_IN_A_LINE = 200  # characters
LONGEST_MESSAGE = 8 * 1024  # characters, also of a hint
LONGEST_TRACEBACK = 64 * 1024


def in_a_line(message: str) -> str:
    """Return the first line of a message, shortened. An error may end with a piece of a log."""
    line = message.strip().partition("\n")[0]
    return line if len(line) <= _IN_A_LINE else f"{line[:_IN_A_LINE]}..."


def bounded(text: str, longest: int) -> str:
    """Return a text of at most `longest` characters that can be encoded in UTF-8. The middle of a longer one is cut.

    User code can raise what it likes: an error of 70 MB, or with half a character, would not fit through a connection.
    Then nobody would learn that the task has failed.
    """
    if len(text) > longest:
        cut = f"\n... {len(text) - longest:,} characters are left out ...\n"
        kept = longest - len(cut)
        text = text[: kept - kept // 2] + cut + text[len(text) - kept // 2 :]
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


class Consequence(StrEnum):
    """What the receiver of an error can do about it. Loops that retry a request look at nothing else."""

    RETRYABLE = "retryable"  # the same request may succeed later
    REFUSED = "refused"  # understood and refused; the same request will be refused again
    FENCED = "fenced"  # the sender (or the receiver) acts for a replaced leader
    FATAL = "fatal"  # retrying does not help; somebody must act

    @classmethod
    def _missing_(cls, value: object) -> Consequence:
        return cls.RETRYABLE  # from a later version: an unknown word must not end a job


class Kind(StrEnum):
    """What an error is about, for decisions to which the consequence is not enough. Most errors are OTHER."""

    OTHER = "other"
    UNFORESEEN = "unforeseen"  # a bug, or an exception of a library: nobody knows whether a restart would help
    NOT_FOUND = "not-found"  # what the request names does not exist, or no longer
    CONFLICT = "conflict"  # it exists, but its state does not allow the request
    STOPPING = "stopping"  # the daemon ends: it undoes what is under way, and takes nothing new
    NO_LEADER = "no-leader"  # no daemon leads at the moment, so the request had no effect
    CLUSTER = "cluster"  # a process is away, busy or replaced, or slots were taken back; no job is at fault
    SESSION_LOST = "session-lost"  # all tasks in a TaskManager's Spark session ended with it
    SESSION_TAKEN = "session-taken"  # the session holds what keeps the job out; another session may have room
    STORAGE = "storage"
    EXCHANGE = "exchange"  # what another task has written cannot be read: both restart
    DAMAGED = "damaged"  # what a job would be restored from is missing or is not what was written
    JOB = "job"  # the job's code or data, or the slots that it asks for

    @classmethod
    def _missing_(cls, value: object) -> Kind:
        return cls.OTHER  # sent by a later version


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An error in the form in which it is stored, shown over HTTP and sent between processes. Its texts are bounded."""

    code: str
    message: str
    consequence: Consequence = Consequence.FATAL
    kind: Kind = Kind.OTHER
    hint: str = ""
    traceback: str = ""  # of user code or of Spark; never of the daemon itself

    def __post_init__(self) -> None:
        for field, longest in _LONGEST.items():
            text = getattr(self, field)
            if (short := bounded(text, longest)) is not text:
                msgspec.structs.force_setattr(self, field, short)

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}" + (f" ({self.hint})" if self.hint else "")


_LONGEST = {"message": LONGEST_MESSAGE, "hint": LONGEST_MESSAGE, "traceback": LONGEST_TRACEBACK}


class MinflinkError(Exception):
    """Base of all errors that minflinkd raises on purpose.

    `code` is stable and documented in docs/errors.md. `hint` says what to do next.
    """

    code: ClassVar[str] = "internal"
    consequence: ClassVar[Consequence] = Consequence.FATAL
    kind: ClassVar[Kind] = Kind.OTHER

    def __init__(self, message: str, *, hint: str = "") -> None:
        message = bounded(message, LONGEST_MESSAGE)
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def info(self) -> ErrorInfo:
        return ErrorInfo(
            code=self.code, message=self.message, consequence=self.consequence, kind=self.kind, hint=self.hint
        )


class RemoteError(MinflinkError):
    """An error that another party answered. Keeps that party's code, consequence, kind and traceback."""

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
    kind = Kind.NOT_FOUND


class Conflict(MinflinkError):
    """The target of a request exists, but its state does not allow the request."""

    code = "conflict"
    consequence = Consequence.REFUSED
    kind = Kind.CONFLICT


def class_of(error: ErrorInfo, classes: Iterable[type[E]]) -> type[E] | None:
    """Return the class that the other party raised, if it is one of `classes`: its receiver may raise it again."""
    return next((found for found in classes if found.code == error.code), None)


def error_info(error: BaseException, *, with_traceback: bool = False) -> ErrorInfo:
    """Describe any exception. Foreign ones get the code `internal`. Ask for a traceback only if user code failed."""
    info = error.info() if isinstance(error, MinflinkError) else None
    if info is None:
        info = ErrorInfo(code="internal", message=f"{type(error).__name__}: {_text_of(error)}", kind=Kind.UNFORESEEN)
    if with_traceback and not info.traceback:
        info = msgspec.structs.replace(info, traceback="".join(traceback.format_exception(error)))
    return info


def _text_of(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception as failure:  # the `__str__` of user code
        return f"(its text cannot be made: {type(failure).__name__})"
