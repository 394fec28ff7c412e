"""A job is restored from one of its checkpoints or savepoints, on the page (E17, E18)."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, Locator, Route, expect

from minflinkd.blob.keys import BlobKind
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import Artifact
from minflinkd.rpc import jobs as j
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime.ids import JobId
from tests.component.page.checkpoints_to_show import LAST
from tests.component.page.opened import Opened, opened, press
from tests.component.page.steering.state_to_show import SAVEPOINT
from tests.component.page.steering.world import Steered, asking, steered
from tests.component.page.world import FLIGHTS
from tests.component.rest.access_world import TOKENS
from tests.servers.install import AXE
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

ENDED = JobId("6f" * 16)  # a job that was cancelled
CODE = b"def delays(inputs): ...\n"


async def restore(page: Opened, job: str, checkpoint: int) -> Locator:
    """Go to a checkpoint and press its button. Return the dialog."""
    await page.go(f"jobs/{job}/checkpoints/{checkpoint}")
    await page.page.get_by_role("button", name="Restore from").click()
    return page.page.get_by_role("dialog")


async def with_code(world: Steered, job: JobId, *, uploaded: bool) -> None:
    """Give a job an artifact. `uploaded`: whether the BlobServer still has it."""
    key = await world.blobs.put(job if uploaded else None, CODE, BlobKind.PERMANENT)
    details = world.dispatcher.jobs[job]
    graph = replace(details.graph, artifacts=(Artifact(name="delays.py", key=str(key), size=len(CODE)),))
    world.dispatcher.jobs[job] = replace(details, graph=graph)


async def test_a_job_that_has_ended_is_submitted_again_from_a_savepoint(page: Opened, world: Steered) -> None:
    """The dialog says what will happen. With its secrets, which nobody sees; the new job is followed until it runs."""
    dialog = await restore(page, ENDED, SAVEPOINT)
    await expect(dialog).to_contain_text("The version of trial that ran last is submitted as a new job")
    await expect(dialog).to_contain_text(f"starts from savepoint {SAVEPOINT} of")
    await expect(dialog).to_contain_text("what was written to sinks since then stays there")
    await expect(dialog.get_by_role("radio")).to_have_count(0)
    await press(dialog, "Submit it again")
    await expect(dialog).to_contain_text(f"The new job is running. It started from savepoint {SAVEPOINT}.")
    [asked] = world.dispatcher.submissions
    document = json.loads(asked.document)
    assert document["name"] == "trial"
    assert document["params"]["db_password"] == "hunter2"
    assert document["restore"] == {"path": "s3://lake/savepoints/savepoint-0f0f0f-9c1e77"}
    await dialog.get_by_role("link", name="The new job").click()
    await expect(page.page.locator("h1")).to_have_text("carrier-delays")
    assert page.page.url.endswith(asked.job_id)


async def test_a_running_job_is_stopped_before_and_only_if_the_new_one_can_start(page: Opened, world: Steered) -> None:
    """First a dry run, then the savepoint and the end of the job, then the submission."""
    world.dispatcher.faults = (GraphFault(path="restore.path", problem="it does not fit", hint="allow it"),)
    dialog = await restore(page, FLIGHTS, SAVEPOINT)
    await expect(dialog.get_by_role("radio", name="Stop the running job first")).to_be_checked()
    await press(dialog, "Stop it, then restore")
    await expect(dialog.get_by_role("alert")).to_contain_text("restore.path: it does not fit")
    assert world.asked == []
    world.dispatcher.faults = ()
    await press(dialog, "Try again")
    await expect(dialog).to_contain_text("The new job is running.")
    assert [asked.dry_run for asked in world.dispatcher.submissions] == [True, True, False]
    assert len({asked.job_id for asked in world.dispatcher.submissions}) == 1
    [stopped] = world.asked
    assert isinstance(stopped, j.TriggerSavepoint)
    assert (stopped.stop, stopped.drain) == (True, False)
    assert world.dispatcher.jobs[FLIGHTS].status is JobStatus.FINISHED
    page.forget_complaints()


async def test_code_of_a_job_outlives_its_end(page: Opened, world: Steered) -> None:
    """Artifacts are deleted when their job ends: the dry run before has kept a copy for the new job."""
    await with_code(world, FLIGHTS, uploaded=True)
    dialog = await restore(page, FLIGHTS, SAVEPOINT)
    await dialog.get_by_role("radio", name="Cancel the running job first").check()

    async def end(route: Route) -> None:
        await route.continue_()
        world.blobs.stored.pop(FLIGHTS)

    await page.page.route(f"**/jobs/{FLIGHTS}", end, times=1)
    await press(dialog, "Cancel it, then restore")
    await expect(dialog).to_contain_text("The new job is running.")
    assert world.dispatcher.jobs[FLIGHTS].status is JobStatus.CANCELED
    last = world.dispatcher.submissions[-1]
    [artifact] = json.loads(last.document)["artifacts"]
    assert world.blobs.stored[last.job_id][artifact["key"]] == CODE


async def test_a_job_that_was_ended_is_not_ended_again_if_the_submission_failed(page: Opened, world: Steered) -> None:
    """What is left is tried again, with the same id."""
    dialog = await restore(page, FLIGHTS, SAVEPOINT)
    await dialog.get_by_role("radio", name="Cancel the running job first").check()
    lost = 0

    async def lose(route: Route) -> None:
        nonlocal lost
        if "dry-run" in route.request.url:
            await route.continue_()
        else:
            lost += 1
            await route.abort()

    await page.page.route("**/submit-again?*", lose)
    await press(dialog, "Cancel it, then restore")
    await expect(dialog.get_by_role("alert")).to_contain_text("the daemon does not answer")
    await page.page.unroute("**/submit-again?*")
    await press(dialog, "Try again")
    await expect(dialog).to_contain_text("The new job is running.")
    assert [asked.dry_run for asked in world.dispatcher.submissions] == [True, False]
    assert lost == 1
    page.forget_complaints()


async def test_it_goes_on_without_its_dialog(page: Opened, world: Steered) -> None:
    """A job that was stopped is not left without its successor."""
    world.done = False
    dialog = await restore(page, FLIGHTS, SAVEPOINT)
    await press(dialog, "Stop it, then restore")
    await until(lambda: bool(world.asked), "the savepoint is asked for")
    await press(dialog, "Close")
    await page.page.get_by_role("link", name="Overview").first.click()
    world.done = True
    await until(lambda: len(world.dispatcher.submissions) == 2, "the job is submitted again")
    assert not world.dispatcher.submissions[-1].dry_run


async def test_a_new_job_starts_beside_the_running_one(page: Opened, world: Steered) -> None:
    """The only way from a checkpoint that goes with its job; what to do instead is said."""
    dialog = await restore(page, FLIGHTS, LAST)
    await expect(dialog).to_contain_text("It cannot be cancelled before, because its checkpoints are deleted then")
    await expect(dialog.get_by_role("radio")).to_have_count(0)
    await press(dialog, "Start beside it")
    await expect(dialog).to_contain_text("The new job is running.")
    assert world.dispatcher.jobs[FLIGHTS].status is JobStatus.RUNNING
    assert [asked.dry_run for asked in world.dispatcher.submissions] == [False]


async def test_state_that_does_not_fit_may_be_dropped(page: Opened, world: Steered) -> None:
    dialog = await restore(page, ENDED, SAVEPOINT)
    await dialog.get_by_text("If the job was changed since then").click()
    await dialog.get_by_label("Drop the state").check()
    await dialog.get_by_label("Keep state although").check()
    await press(dialog, "Submit it again")
    await expect(dialog).to_contain_text("The new job is running.")
    [asked] = world.dispatcher.submissions
    allowed = json.loads(asked.document)["restore"]
    assert (allowed["allow-non-restored-state"], allowed["allow-changed-state"]) == (True, True)


async def test_code_that_is_gone_is_asked_for_on_the_submit_page(page: Opened, world: Steered) -> None:
    """It cannot be submitted from the dialog. The job's file is in the editor, with where it starts, and no secrets."""
    await with_code(world, ENDED, uploaded=False)
    dialog = await restore(page, ENDED, SAVEPOINT)
    await expect(dialog).to_contain_text("It has code of its own, delays.py, which was deleted when it ended.")
    await expect(dialog.get_by_role("button", name="Submit it again")).to_be_disabled()
    await dialog.get_by_role("link", name="Submit its file together with that code").click()
    await expect(page.page.locator("h1")).to_have_text("Submit a job")
    document = json.loads(await page.page.locator("textarea").input_value())
    assert document["restore"] == {"path": "s3://lake/savepoints/savepoint-0f0f0f-9c1e77"}
    assert document["artifacts"] == [{"name": "delays.py", "path": "delays.py"}]
    assert document["params"]["db_password"] == "******"
    await expect(page.page.get_by_text("Secrets are hidden")).to_be_visible()
    await expect(page.page.get_by_role("region", name="Artifacts")).to_contain_text("delays.pymissing")


async def test_a_checkpoint_that_may_be_gone_is_said_to_be(page: Opened) -> None:
    dialog = await restore(page, ENDED, LAST)
    await expect(dialog).to_contain_text("Checkpoints of a job that is canceled are deleted, so this one may be gone.")


async def test_the_last_savepoint_and_checkpoint_are_offered_at_once(page: Opened) -> None:
    await page.go(f"jobs/{FLIGHTS}/checkpoints")
    start = page.page.get_by_role("region", name="Start from here")
    await expect(start.get_by_role("button", name="Restore from here: savepoint 60")).to_be_visible()
    await expect(start.get_by_role("button", name="Restore from here: checkpoint 62")).to_be_visible()


async def test_only_who_may_submit_the_job_restores_it(browser: Browser) -> None:
    async with steered(asking()) as world, opened(browser, world.url, place=None) as window:
        page = window.page
        await page.goto(world.url)
        await page.get_by_label("Token").fill(TOKENS["operate"].text)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator(".connection.live")).to_be_visible()
        await window.go(f"jobs/{FLIGHTS}/checkpoints/{SAVEPOINT}")
        await expect(page.get_by_text("to restore the job needs the role submit")).to_be_visible()
        await expect(page.get_by_role("button", name="Restore from")).to_have_count(0)
        window.forget_complaints()


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed (make servers)")
async def test_the_dialog_is_accessible_and_fits_a_telephone(browser: Browser, world: Steered) -> None:
    await with_code(world, ENDED, uploaded=False)
    async with opened(browser, world.url, width=360, height=740) as page:
        for job, checkpoint in ((FLIGHTS, SAVEPOINT), (FLIGHTS, LAST), (ENDED, LAST)):
            dialog = await restore(page, job, checkpoint)
            await dialog.get_by_text("If the job was changed since then").click()
            assert await page.faults() == []
            box = await dialog.bounding_box()
            assert box is not None
            assert (box["x"] >= 0, box["x"] + box["width"] <= 360) == (True, True)
            await page.page.keyboard.press("Escape")


async def test_what_can_be_done_about_a_running_job_depends_on_what_outlives_it(page: Opened) -> None:
    """A job that is stopped is FINISHED, and keeps no checkpoint; a savepoint stays in any case."""
    cases = {
        "{over: true, savepoint: true}": [],
        "{savepoint: true}": ["stop", "cancel", "beside"],
        "{retained: true}": ["cancel", "beside"],
        "{}": ["beside"],
    }
    asked = ", ".join(f"m.ways({one}).map(([way]) => way)" for one in cases)
    assert await page.ask("app/restore.js", f"[{asked}]") == list(cases.values())
