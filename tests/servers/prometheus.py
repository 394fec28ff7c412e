"""Prometheus, on a free port of the loopback: it scrapes what a test serves, with rules if there are some."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cluster import free_port
from tests.servers.install import PROMETHEUS
from tests.waiting import until

PROMTOOL = PROMETHEUS / "promtool"
MISSING = "promtool and prometheus are missing: python -m tests.servers.install"
needs_prometheus = pytest.mark.skipif(not PROMTOOL.is_file(), reason=MISSING)


class Prometheus:
    """A server that is ready."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url = url
        self._http = http

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query, with their values."""
        return list((await self._get("/api/v1/query", {"query": expression}))["result"])

    async def firing(self) -> dict[str, list[dict[str, str]]]:
        """Return the labels of the alerts that fire, by name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in (await self._get("/api/v1/alerts", {}))["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    async def _get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        async with self._http.get(self.url + path, params=query) as response:
            answer = await response.json()
        assert answer["status"] == "success", answer
        data: dict[str, Any] = answer["data"]
        return data


@contextlib.asynccontextmanager
async def prometheus(
    base: Path, *targets: str, rules: Path | None = None, headers: Mapping[str, str] | None = None
) -> AsyncIterator[Prometheus]:
    """Scrape `http://target/metrics` each second. `headers`: what a client of the targets sends, with its token."""
    base.mkdir(parents=True, exist_ok=True)
    scrape: dict[str, Any] = {
        "job_name": "minflinkd",
        "honor_labels": True,
        "static_configs": [{"targets": targets}],
    }
    if headers is not None and "Authorization" in headers:
        kind, _, secret = headers["Authorization"].partition(" ")
        scrape["authorization"] = {"type": kind, "credentials": secret}
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "scrape_configs": [scrape],
        "rule_files": [str(rules)] if rules is not None else [],
    }
    (base / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    port = free_port()
    with (base / "prometheus.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            str(PROMETHEUS / "prometheus"),
            f"--config.file={base / 'prometheus.yml'}",
            f"--storage.tsdb.path={base / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=output,
            stderr=output,
        )
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
            server = Prometheus(f"http://127.0.0.1:{port}", http)

            async def ready() -> bool:
                assert process.returncode is None, (base / "prometheus.log").read_text()[-2000:]
                with contextlib.suppress(aiohttp.ClientError):
                    return len(await server.query("up == 1")) == len(targets)
                return False

            await until(ready, "Prometheus has scraped its targets")
            yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait_for(process.wait(), 30)
