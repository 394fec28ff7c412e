"""Operations from the page (E18): what is said before, what is sent, and what is shown of the outcome."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Browser, Route, expect

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.rpc import jobs as j
from minflinkd.rpc.jobs import HotRestartJob, JobStatus, RescaleJob
from minflinkd.runtime.errors import ErrorInfo
from tests.component.page.opened import Opened, opened, press
from tests.component.page.steering.world import Steered, asking, steered
from tests.component.page.world import FLIGHTS
from tests.component.rest.access_world import TOKENS
from tests.unit.rest.parties import TM

pytestmark = pytest.mark.asyncio(loop_scope="session")

JOB_FILE = """\
name: hourly
parallelism: 2
vertices:
  - id: flights
    source: {format: rate}
  - id: out
    inputs: [flights]
    sink: {format: console}
"""


@pytest.fixture
def place() -> str:
    return f"jobs/{FLIGHTS}"


async def test_a_job_is_cancelled_with_the_keyboard_alone(page: Opened, world: Steered) -> None:
    """The dialog says what will happen; Escape leaves everything as it is, and the focus returns to the button."""
    keys, button = page.page.keyboard, page.page.get_by_role("button", name="Cancel", exact=True)
    dialog = page.page.get_by_role("dialog")
    await button.focus()
    await keys.press("Enter")
    await expect(dialog).to_contain_text("The job ends without a savepoint")
    await keys.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(button).to_be_focused()
    assert world.dispatcher.jobs[FLIGHTS].status is JobStatus.RUNNING
    await keys.press("Enter")
    await expect(dialog.get_by_role("button", name="Cancel the job")).to_be_focused()
    await keys.press("Enter")
    await expect(dialog).to_contain_text("is canceled. Its slots are free.")
    await expect(dialog.get_by_role("button", name="Close")).to_be_focused()
    assert world.dispatcher.jobs[FLIGHTS].status is JobStatus.CANCELED
    await keys.press("Enter")
    await expect(dialog).to_have_count(0)
    await expect(button).to_have_count(0)  # a job that has ended offers nothing


async def test_a_job_is_stopped_with_a_savepoint(page: Opened, world: Steered) -> None:
    """Its directory and `drain` are sent, the phases are shown, and in the end where the savepoint is."""
    world.done = False
    dialog = await page.press("Stop")
    await dialog.get_by_label("Directory").fill(" s3://lake/mine ")
    await dialog.get_by_label("Drain").check()
    await press(dialog, "Take a savepoint and stop")
    await expect(dialog.get_by_label("Progress")).to_contain_text("Waiting for the checkpoint to begin")
    [asked] = world.asked
    assert isinstance(asked, j.TriggerSavepoint)
    assert (asked.directory, asked.stop, asked.drain) == ("s3://lake/mine", True, True)
    world.done = True
    await expect(dialog).to_contain_text(f"is finished. Its savepoint: {world.location}")


async def test_a_savepoint_that_fails_is_said_and_tried_again_anew(page: Opened, world: Steered) -> None:
    """With another id: the first one has its outcome."""
    world.error = ErrorInfo(code="storage", message="PUT s3://lake: no room", hint="delete something")
    dialog = await page.press("Savepoint")
    await press(dialog, "Take a savepoint")
    await expect(dialog.get_by_role("alert")).to_contain_text("PUT s3://lake: no room")
    world.error = None
    await press(dialog, "Try again")
    await expect(dialog).to_contain_text(f"The savepoint is complete: {world.location}")
    first, second = world.asked
    assert isinstance(first, j.TriggerSavepoint)
    assert isinstance(second, j.TriggerSavepoint)
    assert first.trigger_id != second.trigger_id


async def test_a_refusal_is_shown_in_the_daemons_words(page: Opened, world: Steered) -> None:
    world.refuses = True
    dialog = await page.press("Savepoint")
    await press(dialog, "Take a savepoint")
    await expect(dialog.get_by_role("alert")).to_contain_text("a savepoint is under way")
    await expect(dialog.get_by_role("alert")).to_contain_text("wait until it is complete")
    page.forget_complaints()


async def test_a_request_that_was_lost_is_repeated_with_the_same_id(page: Opened, world: Steered) -> None:
    """The daemon may have got it: with the same id nothing is done twice. A lost poll is asked again by itself."""

    async def lose(route: Route) -> None:
        await route.fetch()  # the daemon gets it, the answer is lost
        await route.abort()

    await page.page.route("**/checkpoints", lose, times=1)
    dialog = await page.press("Checkpoint")
    await dialog.get_by_label("Full").check()
    await press(dialog, "Take a checkpoint")
    await expect(dialog.get_by_role("alert")).to_contain_text("the daemon does not answer")
    await page.page.route("**/checkpoints/*", lambda route: route.abort(), times=2)
    await press(dialog, "Try again")
    await expect(dialog).to_contain_text("Checkpoint 63 is complete.")
    first, second = world.asked
    assert isinstance(first, j.CheckpointJob)
    assert first.full
    assert first == second
    page.forget_complaints()


async def test_a_job_is_rescaled(page: Opened, world: Steered) -> None:
    """What it has now is asked for; a number that makes no sense cannot be sent."""
    dialog = await page.press("Rescale")
    field, button = dialog.get_by_label("Parallelism of all tasks"), dialog.get_by_role("button", name="Rescale")
    await expect(field).to_have_value("2")
    await field.fill("0")
    await expect(button).to_be_disabled()
    await field.fill("4")
    await dialog.get_by_label("Least").fill("3")
    await button.click()
    await expect(dialog).to_contain_text("runs with parallelism 4")
    [asked] = world.dispatcher.restarts
    assert isinstance(asked, RescaleJob)
    assert (set(asked.vertices.values()), asked.least) == ({4}, 3)


async def test_a_new_version_is_looked_at_before_the_job_goes_on_with_it(page: Opened, world: Steered) -> None:
    """A dry run names what changes and what becomes of state; the documents are side by side; then it is confirmed."""
    await page.page.get_by_role("link", name="Hot restart").click()
    editor = page.page.get_by_label("Job file of the new version")
    text = await editor.input_value()
    document = json.loads(text)
    assert document["parallelism"] == 2
    for vertex in document["vertices"]:
        if vertex["id"] == "flights":
            vertex["source"]["schema"] = "carrier STRING"
        if vertex["id"] == "planes":
            vertex["source"]["schema"] = "tailnum STRING"
    document["parallelism"] = 3
    await editor.fill(json.dumps(document, indent=2))
    await page.page.get_by_role("button", name="See what changes").click()
    changes = page.page.get_by_role("region", name="What changes")
    await expect(changes).to_contain_text("delays is changed: sql")
    await expect(changes).to_contain_text("The state of delays (stateStoreSave) is kept")
    await expect(changes).to_contain_text("params.minutes")
    await expect(page.page.locator("td.new", has_text='"parallelism": 3')).to_be_visible()
    assert [asked.dry_run for asked in world.dispatcher.restarts] == [True]
    dialog = await page.press("Hot restart …")
    await expect(dialog).to_contain_text("All state is kept.")
    await press(dialog, "Hot restart")
    await expect(dialog).to_contain_text("Hot restart 2 is complete: the new version runs after 0.3 s.")
    last = world.dispatcher.restarts[-1]
    assert isinstance(last, HotRestartJob)
    assert json.loads(last.document) == document
    assert not last.dry_run


async def test_a_version_that_does_not_come_up_is_no_success(page: Opened, world: Steered) -> None:
    world.dispatcher.restart_ends = j.RestartState.ROLLED_BACK
    dialog = await page.press("Rescale")
    await press(dialog, "Rescale")
    await expect(dialog.get_by_role("alert")).to_contain_text("was given up (rolled back); the job is running.")


async def test_a_job_file_is_dropped_checked_and_submitted(page: Opened, world: Steered) -> None:
    """YAML is read by the daemon. A fault is at its line in the editor, with its hint; nothing is started before."""
    await page.go("submit")
    editor = page.page.get_by_label("Job file", exact=True).and_(page.page.locator("textarea"))
    drop = """(text) => {
      const files = new DataTransfer();
      files.items.add(new File([text], "job.yaml"));
      document.querySelector(".editor").dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true }));
    }"""
    await page.page.evaluate(drop, JOB_FILE.replace("parallelism", "paralelism"))
    await expect(editor).to_have_value(JOB_FILE.replace("parallelism", "paralelism"))
    check = page.page.get_by_role("button", name="Check it")
    await check.click()
    faults = page.page.get_by_role("alert", name="Faults")
    await expect(faults).to_contain_text('unknown key "paralelism"')
    await expect(page.page.locator(".gutter .bad")).to_have_text("2")
    await faults.get_by_role("button", name="line 2").click()
    assert await page.page.evaluate("getSelection().toString()") == "paralelism: 2"
    assert world.dispatcher.submissions == []
    world.dispatcher.faults = (GraphFault(path="vertices.out.sink", problem="no such sink", hint="console"),)
    await editor.fill(JOB_FILE)
    await check.click()
    await expect(faults).to_contain_text("vertices.out.sink line 8")
    world.dispatcher.faults = ()
    await check.click()
    await expect(page.page.get_by_text("No faults")).to_be_visible()
    dialog = await page.press("Submit …")
    await press(dialog, "Submit")
    await expect(dialog).to_contain_text("hourly is running.")
    assert [asked.dry_run for asked in world.dispatcher.submissions] == [True, True, False]
    page.forget_complaints()


async def test_a_task_manager_is_drained_and_used_again(page: Opened, world: Steered) -> None:
    """The dialog says which jobs move, and follows it until it has ended."""
    await page.go(f"taskmanagers/{TM}")
    dialog = await page.press("Drain")
    await expect(dialog).to_contain_text("flights: carrier delays by hour")
    world.managers.held_by = "2 slots are needed, none is free"
    await press(dialog, "Drain it")
    await expect(dialog.get_by_label("Progress")).to_contain_text("2 slots are needed, none is free")
    assert world.managers.drained
    await press(dialog, "Close")
    dialog = await page.press("Use it again")
    await press(dialog, "Use it again")
    await expect(dialog).to_contain_text("gives out slots again")
    assert not world.managers.drained


async def test_the_dialog_outlives_the_task_manager_that_is_drained(page: Opened, world: Steered) -> None:
    await page.go(f"taskmanagers/{TM}")
    dialog = await page.press("Drain")
    await press(dialog, "Drain it")
    await expect(dialog).to_contain_text("has ended. Its jobs run elsewhere.")
    await expect(page.page.get_by_text("is not registered any more")).to_be_visible()
    await press(dialog, "Close")
    await expect(dialog).to_have_count(0)
    assert await page.page.evaluate("document.activeElement.id") == "main"  # its button is gone
    page.forget_complaints()


async def test_orphans_are_looked_for_and_deleted(page: Opened, world: Steered) -> None:
    """First they are only listed. How many go for ever is said before."""
    await page.go("storage")
    await page.page.get_by_role("button", name="Look for orphans").click()
    await expect(page.page.get_by_text("3 files, 12.0 MiB, older than 1 d")).to_be_visible()
    dialog = await page.press("Delete them")
    await expect(dialog).to_contain_text("deleted for ever")
    await press(dialog, "Delete them")
    await expect(dialog).to_contain_text("3 files deleted, 12.0 MiB.")
    assert [asked.dry_run for asked in world.asked if isinstance(asked, j.SweepOrphans)] == [True, False]


@pytest.mark.parametrize(
    ("role", "offered"),
    [
        ("view", set()),
        ("operate", {"Checkpoint", "Savepoint", "Rescale", "Stop", "Cancel", "Look for orphans"}),
        ("limited", {"Look for orphans"}),
    ],
)
async def test_only_what_the_role_allows_is_offered(browser: Browser, role: str, offered: set[str]) -> None:
    """`limited` may submit jobs named etl-* alone: this job is not one of them."""
    everything = {"Checkpoint", "Savepoint", "Rescale", "Stop", "Cancel", "Drain", "Look for orphans"}
    async with steered(asking()) as world, opened(browser, world.url, place=None) as window:
        page = window.page
        await page.goto(world.url)
        await page.get_by_label("Token").fill(TOKENS[role].text)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.locator(".connection.live")).to_be_visible()
        assert await page.get_by_role("link", name="Submit a job").count() == (role == "limited")
        found = set()
        for place in (f"jobs/{FLIGHTS}", f"taskmanagers/{TM}", "storage"):
            await window.go(place)
            await expect(page.locator("h1")).not_to_have_text("Job")
            names = await page.get_by_role("button").all_inner_texts()
            found |= everything & set(names)
            assert await page.get_by_role("link", name="Hot restart").count() == 0
        assert found == offered
        window.forget_complaints()


async def test_an_operation_goes_on_without_its_dialog(page: Opened, world: Steered) -> None:
    world.done = False
    dialog = await page.press("Savepoint")
    await press(dialog, "Take a savepoint")
    await expect(dialog).to_contain_text("If you close this, it goes on.")
    await press(dialog, "Close")
    await expect(dialog).to_have_count(0)
    assert len(world.asked) == 1
