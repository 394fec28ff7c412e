"""The errors that a route may answer, by status, and what each means for the client (E3, E5)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from minflinkd.rest.declared import JSON
from minflinkd.rest.error_form import CODE, CONSEQUENCE, KIND
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.route import OF_EACH_DAEMON, QUESTIONS, Route
from minflinkd.rest.schemas.answer import FULL_ERRORS


class ErrorStatus(NamedTuple):
    name: str  # among the components of the document
    means: str
    header: str = ""
    header_means: str = ""


ERRORS: Final[dict[int, ErrorStatus]] = {
    307: ErrorStatus("AtTheLeader", "A standby names the leader: send it there", "Location", "The path at the leader"),
    400: ErrorStatus("BadRequest", "The request is wrong: `errors` says how"),
    401: ErrorStatus("Unauthorized", "No token, or one that is not valid", "WWW-Authenticate", "Bearer"),
    403: ErrorStatus("Forbidden", "The token does not suffice, or the request is of another origin or host"),
    404: ErrorStatus("NotFound", "What the request names is not there, or no longer"),
    408: ErrorStatus("BodyTooSlow", "The body did not come in time"),
    409: ErrorStatus("Conflict", "It exists, but its state does not allow the request"),
    413: ErrorStatus("BodyTooLarge", "The body exceeds rest.server.max-content-length"),
    415: ErrorStatus("UnsupportedMediaType", "The body has another type, or is compressed"),
    416: ErrorStatus("RangeNotSatisfiable", "The range is outside of the file"),
    417: ErrorStatus("ExpectationFailed", "The header Expect asks for something else than 100-continue"),
    500: ErrorStatus("InternalError", "An error of the daemon's own; its log has more under the id in the message"),
    502: ErrorStatus("LeaderLost", "A standby passed the request on, and the leader failed before it answered"),
    503: ErrorStatus("Unavailable", "The same request may succeed later", "Retry-After", "Seconds to wait"),
}
_OF_ALL: Final = (400, 403, 415, 417, 500, 503)


def errors_of(route: Route) -> list[int]:
    """Return the statuses of the errors that a route may answer, in order."""
    found = {*_OF_ALL, *route.errors}
    if route.path not in OF_EACH_DAEMON:
        found |= {307, 502}
    if route.role is not Role.ANYBODY:
        found.add(401)
    if "{" in route.path:
        found.add(404)
    if route.method not in QUESTIONS:
        found.add(413)
    if route.body is not None:
        found.add(408)
    return sorted(found)


_HEADERS: Final = {
    CODE: "What went wrong, as a code that does not change",
    CONSEQUENCE: "Whether the same request may succeed later: retryable, refused, fenced or fatal",
    KIND: "What the error is about",
}


def error_responses(flink: dict[str, Any], full: dict[str, Any]) -> dict[str, Any]:
    """Return the responses by name. `flink`, `full`: the schemas of an error in its two forms."""
    return {one.name: _response(status, one, error_content(flink, full)) for status, one in ERRORS.items()}


def error_content(flink: dict[str, Any], full: dict[str, Any]) -> dict[str, Any]:
    """Return an answer in the form for everybody, and in the one for who names our media type in `Accept`."""
    return {JSON: {"schema": flink}, FULL_ERRORS: {"schema": full}}


def _response(status: int, one: ErrorStatus, content: dict[str, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": one.means}
    headers = dict(_HEADERS) if status != 307 else {}
    if one.header:
        headers[one.header] = one.header_means
    response["headers"] = {
        name: {"description": means, "schema": {"type": "string"}} for name, means in headers.items()
    }
    if status != 307:
        response["content"] = content
    if status == 401:  # a person with a browser gets the form to log in
        response["content"]["text/html"] = {"schema": {"type": "string"}}
    return response
