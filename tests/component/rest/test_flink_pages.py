"""Every page of Flink's dashboard, unmodified, opens in a browser, on an endpoint with stand-ins behind it (E1).

`tests/e2e/test_flink_dashboard.py` does the same with a real job.
"""

from __future__ import annotations

import pytest

from minflinkd.rest.plan import vertex_id
from minflinkd.rest.server import RestServer
from tests.servers import chromium as browser
from tests.servers import flink_dashboard as dashboard
from tests.unit.rest.parties import RUNNING, TM, TaskManager

pytestmark = pytest.mark.slow


async def test_every_page_of_flinks_dashboard_opens(server: RestServer, task_manager: TaskManager) -> None:
    """No call is answered with 4xx or 5xx, and no script fails."""
    if reason := dashboard.missing() or browser.missing():
        pytest.skip(reason)
    task_manager.logs["taskmanager.out"] = b"printed\n"
    async with dashboard.flink_dashboard(server.url, {}) as url, browser.chromium() as chromium:
        page = await chromium.new_page()
        await page.goto(url, wait_until="networkidle")
        paths = dashboard.pages(RUNNING, [vertex_id("flights"), vertex_id("out")], TM)
        assert not (found := await dashboard.complaints_of(page, paths)), "\n".join(found)
        assert "carrier-delays" in await dashboard.opened(page, "/application/running")
