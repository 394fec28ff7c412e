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
    await expect(dialog.locator(".result")).to_contain_text(says, timeout=SLOW)
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
        await press(page, "Hot restart …", "Hot restart", "The new version runs")

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
