"""The pages around operations: plan, storage, blobs, daemon, the editor (E17, E18)."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, expect

from minflinkd.jobgraph.model import Artifact
from minflinkd.page.files import files
from minflinkd.rpc.jobs import ExplainedTask
from minflinkd.runtime.ids import TaskId
from tests.component.page.opened import Opened, opened
from tests.component.page.steering.world import Steered
from tests.component.page.world import FLIGHTS
from tests.servers.install import AXE
from tests.shortened import first
from tests.unit.rest.parties import TM

pytestmark = pytest.mark.asyncio(loop_scope="session")

JOB = "flights: carrier delays by hour"
PLACES = {
    f"jobs/{FLIGHTS}/plan": JOB,
    f"jobs/{FLIGHTS}/new-version": JOB,
    f"jobs/{FLIGHTS}/state": JOB,
    "submit": "Submit a job",
    "storage": "Storage",
    "blobs": "Blobs",
    "daemon": "Daemon",
}


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed (make servers)")
@pytest.mark.parametrize("theme", first(["light", "dark"]))
async def test_every_page_and_dialog_is_accessible(
    browser: Browser, world: Steered, theme: Literal["light", "dark"]
) -> None:
    """Nothing against the policy, and nothing that axe-core finds, also while an operation asks and goes on."""
    async with opened(browser, world.url, theme=theme) as page:
        faults = {}
        for place, title in PLACES.items():
            await page.go(place)
            await expect(page.page.locator("h1")).to_have_text(title)
            if found := await page.faults():
                faults[place] = found
        world.done = False
        await page.go(f"jobs/{FLIGHTS}")
        for name in ("Checkpoint", "Savepoint", "Rescale", "Stop", "Cancel"):
            await page.page.get_by_role("button", name=name, exact=True).click()
            if found := await page.faults():
                faults[name] = found
            await page.page.keyboard.press("Escape")
        await page.page.get_by_role("button", name="Savepoint", exact=True).click()
        await page.page.get_by_role("button", name="Take a savepoint").click()
        await expect(page.page.get_by_label("Progress")).to_be_visible()
        faults |= {"under way": found} if (found := await page.faults()) else {}
        await page.go(f"jobs/{FLIGHTS}/new-version")
        await page.page.get_by_role("button", name="See what changes").click()
        await expect(page.page.get_by_role("alert", name="Faults")).to_be_visible()
        faults |= {"faults": found} if (found := await page.faults()) else {}
        assert faults == {}
        assert await page.violations() == []


async def test_on_a_telephone_nothing_sticks_out(browser: Browser, world: Steered) -> None:
    async with opened(browser, world.url, width=360, height=740) as page:
        for place, title in {**PLACES, f"taskmanagers/{TM}": TM}.items():
            await page.go(place)
            await expect(page.page.locator("h1")).to_have_text(title)
            assert await page.page.evaluate("document.documentElement.scrollWidth") <= 360, place
        await page.go(f"jobs/{FLIGHTS}")
        await page.page.get_by_role("button", name="Stop").click()
        box = await page.page.get_by_role("dialog").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360


async def test_a_plan_says_why_it_is_cut_and_what_each_vertex_does(page: Opened, world: Steered) -> None:
    await page.go(f"jobs/{FLIGHTS}/plan")
    cuts = page.page.get_by_role("region", name="Tasks and exchanges")
    await expect(cuts).to_contain_text("7 vertices run as 6 Spark queries, in 2 slots. 5 edges are cut")
    await expect(cuts).to_contain_text("clean → by_planethe job asks for it (exchange: true)")
    task = page.page.get_by_role("region", name="Task by_plane")
    await expect(task.get_by_label("SQL of by_plane")).to_have_text("SELECT * FROM clean JOIN planes USING (tailnum)")
    world.dispatcher.explained = (
        ExplainedTask(task_id=TaskId("clean"), plan="== Physical Plan ==\nScan", operators=()),
    )
    await page.page.get_by_role("button", name="Ask Spark").click()
    await page.page.get_by_text("Spark's plan of clean").click()
    await expect(page.page.get_by_text("== Physical Plan ==")).to_be_visible()
    [asked] = world.dispatcher.submissions
    assert asked.dry_run
    assert asked.explain


async def test_secrets_of_a_job_are_not_shown_nor_sent_back(page: Opened, world: Steered) -> None:
    """A document with hidden values cannot be submitted as it is."""
    job = world.dispatcher.jobs[FLIGHTS]
    code = (Artifact(name="delays.py", key="p-1-2", size=2048),)
    graph = replace(job.graph, params={"db_password": "hunter2"}, artifacts=code)
    world.dispatcher.jobs[FLIGHTS] = replace(job, graph=graph)
    await page.go(f"jobs/{FLIGHTS}/plan")
    await expect(page.page.get_by_role("region", name="Code artifacts")).to_contain_text("delays.py2.00 KiB")
    await expect(page.page.get_by_role("button", name="Ask Spark")).to_have_count(0)
    assert "hunter2" not in await page.page.content()
    await page.go(f"jobs/{FLIGHTS}/new-version")
    await expect(page.page.get_by_text("Secrets are hidden")).to_be_visible()
    await expect(page.page.get_by_role("button", name="See what changes")).to_be_disabled()


async def test_blobs_are_listed_by_job_with_what_becomes_of_them(page: Opened) -> None:
    await page.go("blobs")
    rows = page.page.locator("tbody tr")
    await expect(rows).to_have_count(3)
    await expect(rows.nth(1)).to_contain_text("condemned")
    await page.page.get_by_label("Job").select_option(label=JOB)
    await expect(rows).to_have_count(2)


async def test_the_daemon_shows_its_options_without_secrets(page: Opened) -> None:
    await page.go("daemon")
    options = page.page.get_by_role("region", name="Options")
    await expect(options).to_contain_text("security.token******")
    await page.page.keyboard.press("/")
    await page.page.keyboard.type("slots")
    await expect(options.locator("tbody tr")).to_have_count(1)


async def test_the_daemon_shows_where_each_option_was_set(page: Opened) -> None:
    """Also of secrets. What was set nowhere is the default, and can be left out (E17)."""
    await page.go("daemon")
    rows = page.page.get_by_role("region", name="Options").locator("tbody tr")
    await expect(rows.nth(0)).to_contain_text("rest.port8081default")
    await expect(rows.nth(1)).to_contain_text("MINFLINKD_SECURITY_TOKEN")
    await expect(rows.nth(2)).to_contain_text("2/etc/minflinkd/minflinkd.yaml:12")
    await expect(rows.nth(3)).to_contain_text("spark.a: command linespark.b: /etc/minflinkd/minflinkd.yaml:13")
    await page.page.get_by_label("Only what was set").check()
    await expect(rows).to_have_count(3)
    await page.page.get_by_label("Filter the options").fill("yaml:12")
    await expect(rows).to_have_count(1)


async def test_the_daemon_shows_whether_rpc_is_healthy(page: Opened, world: Steered) -> None:
    """What is unanswered turns bad, and is named with its message; so is what waits in a mailbox (E17)."""
    await page.go("daemon")
    rpc = page.page.get_by_role("region", name="RPC")
    unanswered = rpc.locator("dl.figures > div").filter(has_text="Unanswered")
    await expect(unanswered.locator("dd")).to_contain_text("0in the last minute")
    await expect(rpc.locator("tbody tr").filter(has_text="ListJobs")).to_contain_text("none")
    world.rpc.ended("DeployTask", "rpc-timeout", 10.0, answered=False)
    world.rpc.ended("GetJob", "job-not-found", 0.001)
    with world.dispatcher.mailbox.pending.during("SubmitJob"):
        await expect(unanswered.locator("dd.bad")).to_contain_text("1DeployTask")
        await expect(rpc.locator("dl.figures > div").filter(has_text="Refused")).to_contain_text("1GetJob")
        await expect(rpc.locator("dl.figures > div").filter(has_text="Slowest")).to_contain_text("10 sDeployTask")
        await expect(rpc.get_by_label("Mailboxes").locator("tbody tr").first).to_contain_text("dispatcher1")
        await expect(rpc.locator("tbody tr").first).to_contain_text("rpc-timeout 1")


async def test_storage_counts_the_files_of_all_jobs(page: Opened, world: Steered) -> None:
    await page.go("storage")
    await expect(page.page.get_by_role("region", name="By job").locator("tbody tr")).to_have_count(4)
    await expect(page.page.get_by_text("16 files")).to_be_visible()
    await expect(page.page.get_by_role("region", name="Requests")).to_contain_text("5,406")


async def test_lines_are_compared_and_what_is_far_from_a_change_is_left_out(modules: Opened) -> None:
    found = await modules.ask("app/diff.js", "m.sideBySide('a\\nb\\nc\\nd', 'a\\nB\\nc\\nx\\nd')")
    assert found == [["a", "a"], ["b", "B"], ["c", "c"], [None, "x"], ["d", "d"]]
    rows = json.dumps([["=", "="]] * 9 + [["a", "b"]] + [["=", "="]] * 9)
    folded = await modules.ask("app/diff.js", f"m.folded({rows}, 2)")
    assert folded == [7, ["=", "="], ["=", "="], ["a", "b"], ["=", "="], ["=", "="], 7]


async def test_a_fault_is_at_the_nearest_line_that_is_known(modules: Opened) -> None:
    lines = json.dumps({"job": 1, "vertices": 3, "vertices.a": 4, "vertices.a.inputs[0]": 6})
    cases = {"vertices.a.inputs[0].id": 6, "vertices.a.sql": 4, "vertices.b.sql": 3, "params.x": 1, "name": 1}
    asked = ", ".join(f"m.lineOf({{path: {json.dumps(path)}}}, {lines})" for path in cases)
    assert await modules.ask("app/editor.js", f"[{asked}]") == list(cases.values())


async def test_patterns_of_jobs_are_those_of_the_daemon(modules: Opened) -> None:
    cases = {("etl-1", "etl-*"): True, ("xetl-1", "etl-*"): False, ("a.b", "a?b"): True, ("ac", "a[!b]"): True}
    asked = ", ".join(f"m.matches({json.dumps(name)}, {json.dumps(pattern)})" for name, pattern in cases)
    assert await modules.ask("app/allowed.js", f"[{asked}]") == list(cases.values())


async def test_the_whole_page_stays_small() -> None:
    """At most 300 kB are sent, with everything (E15)."""
    assert sum(file.size for file in files().by_path.values()) < 300_000
