"""Errors as HTTP answers (E3): a status, a stable code, what was wrong and what to do. Never a traceback."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.rest.schemas import ErrorAnswer, Fault
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind, MinflinkError

_BY_KIND = {Kind.NOT_FOUND: 404, Kind.CONFLICT: 409}
_BY_CONSEQUENCE = {
    Consequence.REFUSED: 400,
    Consequence.RETRYABLE: 503,
    Consequence.FENCED: 503,
    Consequence.FATAL: 500,
}


class RequestError(MinflinkError):
    """A request that the endpoint itself refuses."""

    consequence = Consequence.REFUSED
    status: ClassVar[int] = 400


class InvalidRequest(RequestError):
    code = "invalid-request"


class CrossSite(RequestError):
    """The request comes from a page of another origin (E40)."""

    code = "cross-site"
    status = 403


class UnknownHost(RequestError):
    """The Host header names another host: DNS rebinding (E40)."""

    code = "unknown-host"
    status = 403


class NoSuchPath(RequestError):
    code = "not-found"
    status = 404


class MethodNotAllowed(RequestError):
    code = "method-not-allowed"
    status = 405


class BodyTooSlow(RequestError):
    code = "body-too-slow"
    status = 408


class BodyTooLarge(RequestError):
    code = "body-too-large"
    status = 413


class UnsupportedMediaType(RequestError):
    code = "unsupported-media-type"
    status = 415


class RangeNotSatisfiable(RequestError):
    code = "range-not-satisfiable"
    status = 416


class ExpectationFailed(RequestError):
    code = "expectation-failed"
    status = 417


class Overloaded(RequestError):
    code = "overloaded"
    consequence = Consequence.RETRYABLE
    kind = Kind.CLUSTER
    status = 503


class InvalidJob(RequestError):
    """A job that the Dispatcher refused, with all its faults (J4)."""

    code = InvalidJobGraph.code

    def __init__(self, faults: tuple[GraphFault, ...]) -> None:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__(f"the job has {count}", hint="correct them and submit it again; nothing was started")
        self.faults = faults


def status_of(error: MinflinkError) -> int:
    """Return 400 for the user's fault, 404, 409, 503 if a retry may succeed, 500 for the daemon's fault."""
    if isinstance(error, RequestError):
        return error.status
    info = error.info()
    return _BY_KIND.get(info.kind, _BY_CONSEQUENCE[info.consequence])


def error_answer(error: MinflinkError) -> ErrorAnswer:
    info = error.info()
    faults = tuple(_fault(fault) for fault in error.faults) if isinstance(error, InvalidJob) else ()
    errors = (_sentence(info), *map(_fault_line, faults))
    return ErrorAnswer(
        errors=errors, code=info.code, consequence=info.consequence, kind=info.kind, hint=info.hint, faults=faults
    )


def internal_error(request_id: str) -> ErrorAnswer:
    """Return the answer for a bug: the log has the traceback, the client gets an id to look for."""
    return ErrorAnswer(
        errors=(f"the daemon failed on this request ({request_id})",),
        code="internal",
        consequence=Consequence.FATAL,
        kind=Kind.UNFORESEEN,
        hint=f"look for {request_id} in the daemon's log",
    )


def _sentence(info: ErrorInfo) -> str:
    return f"{info.message} ({info.hint})" if info.hint else info.message


def _fault(fault: GraphFault) -> Fault:
    return msgspec.convert(fault, Fault, from_attributes=True)


def _fault_line(fault: Fault) -> str:
    return f"{fault.path}: {fault.problem}" + (f" ({fault.hint})" if fault.hint else "")
