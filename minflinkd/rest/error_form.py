"""In which of two forms an error is sent (E3).

Flink's clients take a body for an error only if `errors` is its one field: with others beside it, they parse it as the
answer that they expect, and take a refusal for a success. So this is what everybody gets, with the code in headers.
Who names our own media type in `Accept` gets all that is known of the error.
"""

from __future__ import annotations

from typing import Final

from aiohttp import hdrs, web
from aiohttp.web_request import BaseRequest

from minflinkd.rest.backend import encode, json_answer
from minflinkd.rest.schemas import ErrorAnswer, FlinkError
from minflinkd.rest.schemas.answer import FULL_ERRORS

CODE: Final = "Minflinkd-Error-Code"
CONSEQUENCE: Final = "Minflinkd-Error-Consequence"
KIND: Final = "Minflinkd-Error-Kind"


def error_response(request: BaseRequest, answer: ErrorAnswer, status: int) -> web.Response:
    """Return an error in the form that the client of the request reads."""
    if takes_full_errors(request.headers.get(hdrs.ACCEPT, "")):
        response = web.Response(body=encode(answer), status=status, content_type=FULL_ERRORS, charset="utf-8")
    else:
        response = json_answer(FlinkError(errors=answer.errors), status)
    response.headers[CODE] = answer.code
    response.headers[KIND] = answer.kind
    if answer.consequence is not None:
        response.headers[CONSEQUENCE] = answer.consequence
    return response


def takes_full_errors(accept: str) -> bool:
    """Whether a header `Accept` names our media type."""
    return any(each.partition(";")[0].strip().lower() == FULL_ERRORS for each in accept.split(","))
