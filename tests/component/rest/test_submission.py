"""POST /jobs, and Flink's PATCH for cancelling (E2)."""

from __future__ import annotations

import re

import aiohttp

from tests.unit.rest.parties import RUNNING, Dispatcher

Http = aiohttp.ClientSession
DOCUMENT = b'{"name": "x",  "vertices": []}'
JSON = {"Content-Type": "application/json"}


async def test_a_submission_is_accepted_with_the_jobs_id_and_url(http: Http, dispatcher: Dispatcher) -> None:
    """The document reaches the Dispatcher as it was sent (E2)."""
    async with http.post("/v1/jobs", data=DOCUMENT, headers=JSON) as response:
        body = await response.json()
    assert response.status == 202
    assert re.fullmatch("[0-9a-f]{32}", body["jobid"])
    assert body["jobUrl"] == f"/jobs/{body['jobid']}"
    (submission,) = dispatcher.submissions
    assert (submission.document, submission.dry_run) == (DOCUMENT, False)


async def test_the_client_may_choose_the_id(http: Http, dispatcher: Dispatcher) -> None:
    """A client that does not know the outcome of its submission repeats it under the same id (R25)."""
    for _ in range(2):
        async with http.post(f"/jobs?jobId={'7' * 32}", data=DOCUMENT, headers=JSON) as response:
            assert (response.status, (await response.json())["jobid"]) == (202, "7" * 32)
    assert {submission.job_id for submission in dispatcher.submissions} == {"7" * 32}


async def test_a_submission_is_waited_for_as_long_as_its_answer_may_take_by_now(
    http: Http, dispatcher: Dispatcher
) -> None:
    """Options that change at run time say how long that is (E3)."""
    dispatcher.silent, dispatcher.patience = True, 0.05
    async with http.post("/jobs", data=DOCUMENT, headers=JSON) as response:
        body = await response.json()
    assert (response.status, body["code"]) == (503, "rpc-timeout")
    assert "within 0.05 s" in body["errors"][0]


async def test_a_dry_run_is_told_so_and_leaves_no_job(http: Http, dispatcher: Dispatcher) -> None:
    """`?dry-run` only validates (E2)."""
    async with http.post("/jobs?dry-run", data=DOCUMENT, headers=JSON) as response:
        body = await response.json()
    assert (response.status, body["dry-run"]) == (200, True)
    assert dispatcher.submissions[0].dry_run
    assert body["jobid"] not in dispatcher.jobs


async def test_a_new_job_is_listed_at_once(http: Http) -> None:
    """Answers are shared for a moment, but never across a change that was made here (E4)."""
    async with http.get("/jobs") as response:
        before = len((await response.json())["jobs"])
    async with http.post("/jobs", data=DOCUMENT, headers=JSON) as response:
        assert response.status == 202
    async with http.get("/jobs") as response:
        assert len((await response.json())["jobs"]) == before + 1


async def test_cancelling_is_accepted(http: Http, dispatcher: Dispatcher) -> None:
    """PATCH /jobs/:jobid?mode=cancel answers 202 with an empty object (E1)."""
    async with http.patch(f"/jobs/{RUNNING}?mode=cancel") as response:
        assert (response.status, await response.json()) == (202, {})
    assert dispatcher.jobs[RUNNING].status == "CANCELED"


async def test_flinks_multipart_submission_is_told_what_to_do(http: Http) -> None:
    """An error says what to do next (E3)."""
    form = aiohttp.FormData()
    form.add_field("request", '{"jobGraphFileName": "job.bin"}', content_type="application/json", filename="request")
    async with http.post("/jobs", data=form) as response:
        body = await response.json()
    assert (response.status, body["code"]) == (415, "unsupported-media-type")
    assert "application/json" in body["hint"]
