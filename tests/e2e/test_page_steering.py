"""The web page steers real jobs (E18): a browser, a daemon, TaskManagers and Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.cluster import running_cluster
from tests.flights_job import FlightsJob, Version
from tests.servers.chromium import Complaints, chromium
from tests.servers.chromium import missing as no_chromium

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(no_chromium() is not None, reason=str(no_chromium())),
]

SLOW = 120_000.0  # milliseconds: Spark works meanwhile
JOB_FILE = """\
name: from the page
vertices:
  - id: numbers
    source: {{format: rate, options: {{rowsPerSecond: "5"}}}}
  - id: out
    inputs: [numbers]
    sink: {{format: parquet, path: {path}}}
"""


async def press(page: Page, opens: str, does: str, says: str) -> str:
    """Open an operation, confirm it, and return what it says in the end."""
    await page.get_by_role("button", name=opens, exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name=does, exact=True).click()
    await expect(dialog.locator(".result")).to_contain_text(says, ignore_case=True, timeout=SLOW)
    text = await dialog.locator(".result").inner_text()
    await dialog.get_by_role("button", name="Close", exact=True).click()
    return text


async def test_jobs_are_submitted_restarted_saved_and_stopped_from_the_page(tmp_path: Path) -> None:
    """A job with code goes on with its uploaded artifacts when its document is edited; a new one is written as YAML."""
    flights = FlightsJob(tmp_path / "flights")
    async with running_cluster(tmp_path / "cluster") as cluster, chromium() as browser:
        flights.release(3)
        job_id = await cluster.submit(flights.write(Version()))
        await cluster.await_checkpoints(job_id, 1)
        context = await browser.new_context(extra_http_headers=cluster.headers)
        page = await context.new_page()
        complaints = Complaints(page)

        await page.goto(f"{cluster.url}/#/jobs/{job_id}/new-version")
        editor = page.get_by_label("Job file of the new version")
        document = json.loads(await editor.input_value(timeout=SLOW))
        document["params"]["factor"] = 3
        await editor.fill(json.dumps(document, indent=2))
        await page.get_by_role("button", name="See what changes").click()
        changes = page.get_by_role("region", name="What changes")
        await expect(changes).to_contain_text("params.factor", timeout=SLOW)
        flights.release(1)
        await press(page, "Hot restart …", "Hot restart", "the new version runs")  # complete; on trial without input

        await page.goto(f"{cluster.url}/#/jobs/{job_id}")
        await press(page, "Checkpoint", "Take a checkpoint", "is complete")
        said = await press(page, "Savepoint", "Take a savepoint", "The savepoint is complete")
        assert Path(said.split(": ", 1)[1].removeprefix("file://")).exists()
        await press(page, "Stop", "Take a savepoint and stop", "is finished")

        await page.goto(f"{cluster.url}/#/submit")
        await page.locator("textarea").fill(JOB_FILE.format(path=tmp_path / "numbers"))
        await page.get_by_role("button", name="Check it").click()
        await expect(page.get_by_text("No faults")).to_be_visible(timeout=SLOW)
        await page.get_by_text("Spark's plan of").first.click()
        await expect(page.locator("details[open] .trace")).to_contain_text("rate")
        await press(page, "Submit …", "Submit", "from the page is running")
        assert complaints.found == []


CODE = 'def doubled(inputs, params):\n    return inputs["counted"].selectExpr("digit", "n * 2 AS n")\n'
WITH_CODE = """\
name: with code
checkpointing: {interval: 2 s}
artifacts: [src/doubling.py]
vertices:
  - id: numbers
    source: {format: rate, options: {rowsPerSecond: "20"}}
  - id: counted
    inputs: [numbers]
    sql: SELECT value % 10 AS digit, count(*) AS n FROM numbers GROUP BY value % 10
  - id: doubled
    inputs: [counted]
    python: doubling:doubled
  - id: out
    inputs: [doubled]
    sink: {format: console}
"""


async def test_a_job_with_code_is_submitted_looked_into_and_restored_from_the_page(tmp_path: Path) -> None:
    """Its state is read as rows; it goes on from a savepoint as a new job, with its code, although it was stopped."""
    async with running_cluster(tmp_path / "cluster") as cluster, chromium() as browser:
        await cluster.await_ready(1)
        context = await browser.new_context(extra_http_headers=cluster.headers)
        page = await context.new_page()
        complaints = Complaints(page)

        await page.goto(f"{cluster.url}/#/submit")
        files = {"job.yaml": WITH_CODE, "doubling.py": CODE}
        await page.locator("input[type=file]").set_input_files(
            [{"name": name, "mimeType": "text/plain", "buffer": text.encode()} for name, text in files.items()]
        )
        await page.get_by_role("button", name="Check it").click()
        await expect(page.get_by_text("No faults")).to_be_visible(timeout=SLOW)
        await press(page, "Submit …", "Submit", "with code is running")
        [job] = (await cluster.client.jobs()).jobs
        await cluster.await_checkpoints(job.jid, 2)
        await page.goto(f"{cluster.url}/#/jobs/{job.jid}")
        await press(page, "Savepoint", "Take a savepoint", "is complete")

        await page.goto(f"{cluster.url}/#/jobs/{job.jid}/state")
        chosen = page.get_by_role("combobox", name="Checkpoint", exact=True)
        savepoint = chosen.locator("option", has_text="savepoint").first
        await chosen.select_option(value=await savepoint.get_attribute("value", timeout=SLOW))
        await page.get_by_role("button", name="Read it").click()
        rows = page.get_by_role("region", name="Rows")
        await expect(rows).to_contain_text("All 10 rows", timeout=SLOW)
        await expect(page.get_by_text("in savepoint")).to_be_visible()
        await expect(page.get_by_role("region", name="Stores").locator("tbody tr")).to_contain_text("counted")
        await page.get_by_role("button", name="SELECT").click()
        await page.locator("textarea").fill("SELECT count(*) AS keys FROM state")
        await page.get_by_role("button", name="Read it").click()
        await expect(page.get_by_role("region", name="Result").locator("tbody td")).to_have_text("10", timeout=SLOW)

        await page.goto(f"{cluster.url}/#/jobs/{job.jid}/checkpoints")
        await page.get_by_role("button", name="Restore from here: savepoint").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("button", name="Stop it, then restore").click()
        await expect(dialog.locator(".result")).to_contain_text("The new job is running", timeout=SLOW)
        new = next(one for one in (await cluster.client.jobs()).jobs if one.jid != job.jid)
        await cluster.await_checkpoints(new.jid, 1)
        restored = (await cluster.client.checkpoints(new.jid)).latest.restored
        assert restored is not None
        assert "savepoint-" in str(restored.external_path)
        assert (await cluster.client.job(job.jid)).state == "FINISHED"
        assert complaints.found == []
