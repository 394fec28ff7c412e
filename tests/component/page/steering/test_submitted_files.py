"""A job file is submitted from the page together with the files that it names as artifacts (E18)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, Locator, Route, expect

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import Artifact
from minflinkd.rpc.jobs import HotRestartJob
from tests.component.page.opened import Opened, opened, press
from tests.component.page.steering.world import Steered
from tests.component.page.world import FLIGHTS
from tests.servers.install import AXE
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")

JOB_FILE = """\
name: hourly
artifacts:
  - src/delays.py
  - {name: lib.zip, path: build/lib-1.2.zip}
vertices:
  - id: flights
    source: {format: rate}
  - id: out
    inputs: [flights]
    sink: {format: console}
"""
DELAYS, LIB = "def delays(inputs): ...\n", "PK" * 40_000
DROP = """(named) => {
  const files = new DataTransfer();
  for (const [name, text] of Object.entries(named)) files.items.add(new File([text], name));
  document.querySelector(".editor").dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true }));
}"""


@pytest.fixture
def place() -> str:
    return "submit"


async def drop(page: Opened, files: dict[str, str]) -> None:
    await page.page.evaluate(DROP, files)


async def check(page: Opened) -> None:
    await page.page.get_by_role("button", name="Check it").click()


def artifacts(page: Opened) -> Locator:
    return page.page.get_by_role("region", name="Artifacts")


def uploaded(world: Steered, document: bytes | str) -> dict[str, str]:
    """Return what the artifacts of a document are, by name."""
    found: list[dict[str, Any]] = json.loads(document)["artifacts"]
    every = {key: data for of_job in world.blobs.stored.values() for key, data in of_job.items()}
    assert all(len(every[one["key"]]) == one["size"] for one in found)
    return {one["name"]: every[one["key"]].decode() for one in found}


async def test_a_job_is_dropped_with_its_files_and_submitted(page: Opened, world: Steered) -> None:
    """All at once. Each file is uploaded once, under the id that the job gets; the job file has their keys then."""
    await drop(page, {"delays.py": DELAYS, "hourly.yaml": JOB_FILE, "lib-1.2.zip": LIB})
    await expect(page.page.locator("textarea")).to_have_value(JOB_FILE)
    await expect(artifacts(page)).to_contain_text("all are here")
    await expect(artifacts(page)).to_contain_text("lib.zip78.1 KiB, to be uploaded (the file lib-1.2.zip)")
    await check(page)
    await expect(page.page.get_by_text("No faults")).to_be_visible()
    dialog = await page.press("Submit …")
    await press(dialog, "Submit")
    await expect(dialog).to_contain_text("hourly is running.")
    tried, submitted = world.dispatcher.submissions
    assert (tried.dry_run, submitted.dry_run) == (True, False)
    assert tried.job_id == submitted.job_id
    assert uploaded(world, submitted.document) == {"delays.py": DELAYS, "lib.zip": LIB}
    assert list(world.blobs.stored) == [submitted.job_id]
    assert len(world.blobs.stored[submitted.job_id]) == 2, "each content once"


async def test_files_that_are_missing_are_named_at_their_lines(page: Opened, world: Steered) -> None:
    """Before anything is uploaded or asked of Spark. When they come, they are taken beside what is here."""
    await drop(page, {"hourly.yaml": JOB_FILE})
    await expect(artifacts(page)).to_contain_text("2 of 2 files missing: drop them on the editor")
    await drop(page, {"lib-1.2.zip": LIB, "notes.py": "1"})
    await expect(artifacts(page)).to_contain_text("1 of 2 files missing: drop it on the editor")
    await expect(artifacts(page)).to_contain_text(
        "notes.pythe job file does not name it under artifacts: it is not sent"
    )
    await check(page)
    faults = page.page.get_by_role("alert", name="Faults")
    await expect(faults).to_contain_text("the file delays.py is not here")
    await expect(page.page.locator(".gutter .bad")).to_have_text("3")
    assert world.dispatcher.submissions == []
    assert world.blobs.stored == {}
    await page.page.get_by_role("button", name="Take away notes.py").click()
    await expect(artifacts(page)).not_to_contain_text("notes.py")
    await drop(page, {"delays.py": DELAYS})
    await check(page)
    await expect(page.page.get_by_text("No faults")).to_be_visible()
    assert uploaded(world, world.dispatcher.submissions[0].document) == {"delays.py": DELAYS, "lib.zip": LIB}


async def test_what_is_named_is_seen_while_the_file_is_written(page: Opened) -> None:
    await page.page.locator("textarea").fill('{"name": "x", "artifacts": ["a.py"], "vertices": []}')
    await expect(artifacts(page)).to_contain_text("a.pymissing")
    await page.page.locator("textarea").fill('{"name": "x", "artifacts": ["b.py"], "vertices": []}')
    await expect(artifacts(page)).to_contain_text("b.pymissing")


async def test_an_upload_shows_how_far_it_is(page: Opened, world: Steered) -> None:
    """By file and phase; one that is lost is said, and tried again."""
    kept: list[Route] = []

    async def keep(route: Route) -> None:
        kept.append(route)

    await page.page.route("**/blobs/*", keep)
    await drop(page, {"delays.py": DELAYS, "hourly.yaml": JOB_FILE, "lib-1.2.zip": LIB})
    await check(page)
    await expect(page.page.get_by_text("Uploading delays.py, 1 of 2, 0 B of 24 B …")).to_be_visible()
    await until(lambda: bool(kept), "the first file is on its way")
    await kept.pop().continue_()
    await expect(page.page.get_by_text("Uploading lib.zip, 2 of 2,")).to_be_visible()
    await until(lambda: bool(kept), "the second file is on its way")
    await kept.pop().abort()
    await expect(page.page.get_by_role("alert")).to_contain_text("the daemon does not answer")
    await page.page.unroute("**/blobs/*")
    await check(page)
    await expect(page.page.get_by_text("No faults")).to_be_visible()
    page.forget_complaints()


async def test_faults_of_the_code_come_from_spark(page: Opened, world: Steered) -> None:
    """With their traceback, at the line of the vertex; a corrected file is uploaded anew."""
    await drop(page, {"delays.py": "def delays(: ...", "hourly.yaml": JOB_FILE, "lib-1.2.zip": LIB})
    fault = GraphFault(path="vertices.out.sink", problem="delays.py: invalid syntax", traceback="SyntaxError: line 1")
    world.dispatcher.faults = (fault,)
    await check(page)
    faults = page.page.get_by_role("alert", name="Faults")
    await expect(faults).to_contain_text("vertices.out.sink line 10")
    await faults.get_by_text("Traceback").click()
    await expect(faults.get_by_text("SyntaxError: line 1")).to_be_visible()
    world.dispatcher.faults = ()
    await drop(page, {"delays.py": DELAYS})
    await expect(faults).to_have_count(0)
    await check(page)
    await expect(page.page.get_by_text("No faults")).to_be_visible()
    assert uploaded(world, world.dispatcher.submissions[-1].document) == {"delays.py": DELAYS, "lib.zip": LIB}
    page.forget_complaints()


async def test_a_refused_submission_leaves_no_artifacts_and_is_tried_again_with_them(
    page: Opened, world: Steered
) -> None:
    """The daemon deletes those of a job that it does not take: they are uploaded once more."""
    await drop(page, {"delays.py": DELAYS, "hourly.yaml": JOB_FILE, "lib-1.2.zip": LIB})
    await check(page)
    dialog = await page.press("Submit …")
    world.dispatcher.faults = (GraphFault(path="vertices.out.sink", problem="the table is gone", hint="make it"),)
    await press(dialog, "Submit")
    await expect(dialog.get_by_role("alert")).to_contain_text("vertices.out.sink: the table is gone")
    world.blobs.stored.clear()
    world.dispatcher.faults = ()
    await press(dialog, "Try again")
    await expect(dialog).to_contain_text("hourly is running.")
    assert uploaded(world, world.dispatcher.submissions[-1].document) == {"delays.py": DELAYS, "lib.zip": LIB}
    page.forget_complaints()


async def test_what_is_submitted_next_is_another_job(page: Opened, world: Steered) -> None:
    await drop(page, {"delays.py": DELAYS, "hourly.yaml": JOB_FILE, "lib-1.2.zip": LIB})
    for _ in range(2):
        await check(page)
        dialog = await page.press("Submit …")
        await press(dialog, "Submit")
        await expect(dialog).to_contain_text("hourly is running.")
        await press(dialog, "Close")
    accepted = [asked.job_id for asked in world.dispatcher.submissions if not asked.dry_run]
    assert len(set(accepted)) == 2
    assert set(world.blobs.stored) == set(accepted)


async def test_files_are_chosen_without_a_mouse(page: Opened) -> None:
    """Several at once, as when they are dropped."""
    async with page.page.expect_file_chooser() as choosing:
        await page.page.get_by_role("button", name="Choose files").press("Enter")
    chooser = await choosing.value
    assert chooser.is_multiple()
    await chooser.set_files(
        [
            {"name": "hourly.yaml", "mimeType": "text/yaml", "buffer": JOB_FILE.encode()},
            {"name": "delays.py", "mimeType": "text/x-python", "buffer": DELAYS.encode()},
        ]
    )
    await expect(artifacts(page)).to_contain_text("1 of 2 files missing")


async def test_a_new_version_takes_new_code(page: Opened, world: Steered) -> None:
    """A dropped file takes the place of the one that runs; what is not dropped stays as it is."""
    job = world.dispatcher.jobs[FLIGHTS]
    code = (
        Artifact(name="delays.py", key=f"p-{'1' * 64}-{'2' * 32}", size=9),
        Artifact(name="lib.zip", key=f"p-{'3' * 64}-{'4' * 32}", size=8),
    )
    world.dispatcher.jobs[FLIGHTS] = replace(job, graph=replace(job.graph, artifacts=code))
    await page.go(f"jobs/{FLIGHTS}/new-version")
    text = json.loads(await page.page.locator("textarea").input_value())
    for vertex in text["vertices"]:
        if "source" in vertex:
            vertex["source"]["schema"] = "carrier STRING"
    await page.page.locator("textarea").fill(json.dumps(text))
    await expect(artifacts(page)).to_contain_text("delays.pyuploaded before")
    await drop(page, {"delays.py": DELAYS})
    await expect(artifacts(page)).to_contain_text("delays.py24 B, to be uploaded")
    await page.page.get_by_role("button", name="See what changes").click()
    await page.press("Hot restart …")
    await press(page.page.get_by_role("dialog"), "Hot restart")
    await expect(page.page.get_by_role("dialog")).to_contain_text("Hot restart 2 is complete")
    last = world.dispatcher.restarts[-1]
    assert isinstance(last, HotRestartJob)
    new, old = json.loads(last.document)["artifacts"]
    assert world.blobs.stored[FLIGHTS][new["key"]].decode() == DELAYS
    assert old == {"name": "lib.zip", "key": code[1].key, "size": 8}


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed (make servers)")
async def test_the_list_of_files_is_accessible_on_a_telephone(browser: Browser, world: Steered) -> None:
    async with opened(browser, world.url, width=360, height=740, place="submit") as page:
        await drop(page, {"hourly.yaml": JOB_FILE, "lib-1.2.zip": LIB, "a_rather_long_name_of_a_file_of_code.py": "1"})
        await expect(artifacts(page)).to_be_visible()
        assert await page.faults() == []
        assert await page.page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_what_a_job_file_names_is_read_in_all_its_forms(modules: Opened) -> None:
    """The short form, a name of its own, an upload before, a URL; anything else is the daemon's to refuse."""
    document = {
        "artifacts": [
            "src/a.py",
            {"name": "b.py", "path": "c.py"},
            {"name": "d.py", "key": "p-1"},
            {"path": "https://host/e.whl?v=1#sha256=00"},
            None,
            {"name": 3},
            {},
        ]
    }
    found = await modules.ask(
        "app/artifacts.js",
        f"m.artifactsOf({json.dumps(document)}).map((one) => [one.index, one.name, one.file, one.key])",
    )
    assert found == [
        [0, "a.py", "a.py", None],
        [1, "b.py", "c.py", None],
        [2, "d.py", "d.py", "p-1"],
        [3, "e.whl", "e.whl", None],
    ]
    none = "[null, [], {artifacts: 'x'}].map((one) => m.artifactsOf(one))"
    assert await modules.ask("app/artifacts.js", none) == [[]] * 3
