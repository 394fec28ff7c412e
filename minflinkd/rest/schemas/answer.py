"""The base of all answers, and the answer for an error (E3)."""

from __future__ import annotations

from typing import Final

import msgspec

from minflinkd.runtime.errors import Consequence, Kind

FULL_ERRORS: Final = "application/vnd.minflinkd+json"  # the media type of ErrorAnswer, for who names it in `Accept`


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Times of day are milliseconds since 1970, -1 for never; durations are milliseconds unless said otherwise."""


class Fault(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """One fault of a submitted job (J4)."""

    path: str
    problem: str
    hint: str = ""
    traceback: str = ""  # of user code or of Spark
    line: int | None = None
    code: str | None = None  # if it is one of the errors in docs/errors.md


class FlinkError(Answer, frozen=True, kw_only=True):
    """An error as Flink's clients read it, which need `errors` to be the one field (E3). Its code is in a header."""

    errors: tuple[str, ...]


class ErrorAnswer(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """An error with all that is known of it. `code` is stable. A proxy's answer has no `consequence` (E3)."""

    errors: tuple[str, ...]
    code: str
    consequence: Consequence | None = None
    kind: Kind = Kind.OTHER
    hint: str = ""
    faults: tuple[Fault, ...] = ()


class Empty(Answer, frozen=True, kw_only=True):
    """Flink's EmptyResponseBody."""
