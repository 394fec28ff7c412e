"""Grafana's dashboard: every query of it finds series in a real scrape (E19b)."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from minflinkd.metrics.loop_lag import LoopLag
from minflinkd.metrics.registry import Metrics
from minflinkd.metrics.samples import LeadershipSample
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.identity.access import Access
from minflinkd.rest.server import Entrance, Listening, RestServer
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.clock import SystemClock
from minflinkd.storage.recording import RequestStatistics
from tests.component.monitoring.test_rules import DEPLOY
from tests.servers.prometheus import Prometheus, needs_prometheus, prometheus
from tests.unit.rest.parties import Dispatcher, ResourceManager
from tests.waiting import until

DASHBOARD = json.loads((DEPLOY / "grafana" / "minflinkd.json").read_text())


def queries() -> dict[str, str]:
    """Return each expression by its panel and letter, with Grafana's variables filled in."""
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    }
    for name, value in {"$job": ".*", "$task": ".*", "$__rate_interval": "1m"}.items():
        found = {where: expression.replace(name, value) for where, expression in found.items()}
    return found


def variables() -> dict[str, str]:
    """Return the metric that each variable takes its values from."""
    return {
        each["name"]: each["definition"].removeprefix("label_values(").rpartition(",")[0].replace("$job", ".*")
        for each in DASHBOARD["templating"]["list"]
        if each["type"] == "query"
    }


async def answers(server: Prometheus) -> None:
    """Wait until every query and variable has series."""
    left = {**queries(), **variables()}

    async def all_have_series() -> bool:
        for where, expression in list(left.items()):
            if await server.query(expression):
                del left[where]
        return not left

    try:
        await until(all_have_series, "every query of the dashboard has series", timeout=20, pause=0.5)
    except AssertionError as error:
        raise AssertionError(f"without series: {left}") from error


@needs_prometheus
async def test_every_query_of_the_dashboard_has_series(tmp_path: Path) -> None:
    """The endpoint is real, with a job that runs; Prometheus scrapes it."""
    network = LocalNetwork()
    dispatcher, resource_manager = Dispatcher(network), ResourceManager(network)
    resource_manager.metrics |= {"disk.free_bytes": 2.0**30, "disk.total_bytes": 2.0**32}
    scrapes = count(1)

    def requests() -> dict[str, dict[str, RequestStatistics]]:
        """Requests to a storage go on while Prometheus looks."""
        made = next(scrapes)
        return {"file": {"list": RequestStatistics(requests=made, seconds=0.1 * made)}}

    metrics = Metrics(
        version="0",
        rpc=network.figures,
        leadership=lambda: LeadershipSample(since_ms=1, epoch=1),
        storage_requests=requests,
    )
    lag = LoopLag(metrics.registry, SystemClock())
    server = RestServer(
        Backend(network),
        listening=Listening(host="127.0.0.1", port=0),
        entrance=Entrance(access=Access.open_to_all()),
        about=About(version="0", config_items=list, blob_url=str),
        metrics=metrics,
    )
    assert dispatcher.jobs
    async with lag, server, prometheus(tmp_path, server.url.removeprefix("http://")) as found:
        await answers(found)
    await network.aclose()


def test_panels_explain_themselves_and_overlap_nowhere() -> None:
    """A panel outside of its row, or without a title, is a slip of whoever edited the file."""
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in DASHBOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert panel["title"]
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("name", ["datasource", "job", "task"])
def test_the_dashboard_has_the_variables_that_its_queries_use(name: str) -> None:
    assert name in [each["name"] for each in DASHBOARD["templating"]["list"]]
