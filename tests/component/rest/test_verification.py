"""The path that verifies a job's checkpoints (C29)."""

from __future__ import annotations

import aiohttp

from minflinkd.checkpoint import messages as c
from minflinkd.checkpoint.damage import Damage
from minflinkd.checkpoint.inventory import VerifiedCheckpoint
from minflinkd.rpc.messages import Done
from minflinkd.runtime.errors import ErrorInfo
from tests.unit.rest.parties import RUNNING, Dispatcher

TRIGGER = "0" * 31 + "7"
PATH = f"/jobs/{RUNNING}/checkpoints/verification"


async def test_a_verification_is_triggered_and_followed(http: aiohttp.ClientSession, dispatcher: Dispatcher) -> None:
    """Each checkpoint has its verdict and its damaged files (C29)."""
    answers = [
        c.Verification(done=False),
        c.Verification(
            done=True,
            checkpoints=(
                VerifiedCheckpoint(checkpoint_id=7, damage=(Damage("7.seg", "it is missing"),), given_up=True),
                VerifiedCheckpoint(checkpoint_id=6, files=3, size=12, triggered_ms=5),
            ),
        ),
    ]
    asked: list[c.VerifyCheckpoints] = []

    async def trigger(request: c.VerifyCheckpoints) -> Done:
        asked.append(request)
        return Done()

    async def result(_: c.GetVerification) -> c.Verification:
        return answers.pop(0)

    dispatcher.mailbox.on(c.VerifyCheckpoints, trigger)
    dispatcher.mailbox.on(c.GetVerification, result)
    async with http.post(PATH, json={"triggerId": TRIGGER}) as answer:
        assert (answer.status, await answer.json()) == (202, {"request-id": TRIGGER})
    assert asked == [c.VerifyCheckpoints(job_id=RUNNING, trigger_id=TRIGGER)]
    async with http.get(f"{PATH}/{TRIGGER}") as answer:
        assert (await answer.json())["status"] == {"id": "IN_PROGRESS"}
    async with http.get(f"{PATH}/{TRIGGER}") as answer:
        shown = await answer.json()
    assert shown["status"] == {"id": "COMPLETED"}
    one, other = shown["operation"]["checkpoints"]
    assert (one["id"], one["whole"], one["given-up"]) == (7, False, True)
    assert one["damaged-files"] == [{"file": "7.seg", "why": "it is missing"}]
    assert other == {
        "id": 6,
        "whole": True,
        "given-up": False,
        "damaged-files": [],
        "files": 3,
        "state-size": 12,
        "trigger-timestamp": 5,
    }


async def test_a_verification_that_failed_says_why(http: aiohttp.ClientSession, dispatcher: Dispatcher) -> None:
    """The storage did not answer (C29)."""

    async def result(_: c.GetVerification) -> c.Verification:
        return c.Verification(done=True, error=ErrorInfo(code="storage-transient", message="no answer"))

    dispatcher.mailbox.on(c.GetVerification, result)
    async with http.get(f"{PATH}/{TRIGGER}") as answer:
        assert (await answer.json())["operation"] == {
            "failure-cause": {"class": "storage-transient", "stack-trace": "[storage-transient] no answer"}
        }


async def test_a_trigger_id_must_be_one(http: aiohttp.ClientSession) -> None:
    """A body that is none is refused (E3)."""
    for body in ({"triggerId": "x"}, {"triggerId": 7}):
        async with http.post(PATH, json=body) as answer:
            assert (answer.status, (await answer.json())["code"]) == (400, "invalid-request")
