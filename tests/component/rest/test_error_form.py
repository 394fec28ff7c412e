"""Flink's clients recognise an error by its one field; everything else is for who asks for it (E1, E3)."""

from __future__ import annotations

import aiohttp
import pytest

from minflinkd.rest.error_form import takes_full_errors
from minflinkd.rest.schemas.answer import FULL_ERRORS
from minflinkd.rest.server import RestServer

UNKNOWN = f"/v1/jobs/{'9' * 32}"


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", "text/html"])
async def test_an_error_has_errors_as_its_one_field(server: RestServer, accept: str | None) -> None:
    """With another field beside it, `flink cancel` would print that the job is cancelled."""
    headers = {} if accept is None else {"Accept": accept}
    async with aiohttp.ClientSession(server.url) as http, http.patch(UNKNOWN, headers=headers) as response:
        body = await response.json()
    assert (response.status, response.content_type) == (404, "application/json")
    assert list(body) == ["errors"]
    assert "there is no job" in body["errors"][0]
    told = {name: response.headers[f"Minflinkd-Error-{name}"] for name in ("Code", "Consequence", "Kind")}
    assert told == {"Code": "not-found", "Consequence": "refused", "Kind": "not-found"}


async def test_who_asks_for_it_gets_all_that_is_known(server: RestServer) -> None:
    headers = {"Accept": f"application/json;q=0.5, {FULL_ERRORS};q=1"}
    async with aiohttp.ClientSession(server.url) as http, http.patch(UNKNOWN, headers=headers) as response:
        body = await response.json()
    assert (response.status, response.content_type) == (404, FULL_ERRORS)
    assert {"errors", "code", "consequence", "kind", "hint"} == body.keys()


@pytest.mark.parametrize(
    ("accept", "full"),
    [("", False), ("application/*", False), (FULL_ERRORS, True), (f"text/html , {FULL_ERRORS.upper()} ; q=0.1", True)],
)
def test_our_media_type_must_be_named(accept: str, full: bool) -> None:
    assert takes_full_errors(accept) is full
