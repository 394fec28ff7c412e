"""What a user of the daemon's host meets: the command line just works, and everything else asks for a token (E40)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.cluster import Cluster, running_cluster
from tests.waiting import PATIENCE, until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A daemon as it is without any configuration, except that it starts no TaskManagers."""
    none = {"resourcemanager.min-taskmanagers": 0, "resourcemanager.standby-taskmanagers": 0}
    async with running_cluster(tmp_path, **none) as found:
        yield found


async def minflinkd(cluster: Cluster, *arguments: str, **environ: str) -> tuple[int, str, str]:
    """Run a command as a user would. Return its exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "minflinkd", *arguments),
        env={**os.environ, "MINFLINKD_URL": cluster.url, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60 * PATIENCE)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_on_the_daemons_host_commands_need_no_token_and_http_does(cluster: Cluster) -> None:
    """The command line takes the Unix socket by default (E40)."""
    code, _, err = await minflinkd(cluster, "list")
    assert code == 0, err
    async with aiohttp.ClientSession(cluster.url) as http:
        async with http.get("/jobs") as response:
            assert response.status == 401
        async with http.get("/jobs", headers=cluster.headers) as response:
            assert response.status == 200


async def test_a_token_is_made_used_and_revoked(cluster: Cluster, tmp_path: Path) -> None:
    """`minflinkd token create|list|revoke`, and SIGHUP (E41)."""
    state = ("--state-dir", str(cluster.state))
    code, token, err = await minflinkd(cluster, "token", "create", "prometheus", "--role", "view", *state)
    assert code == 0, err
    assert "only time" in err
    assert token.strip() not in (cluster.state / "tokens.json").read_text()
    file = tmp_path / "token"
    file.write_text(token)
    file.chmod(0o600)
    code, out, err = await minflinkd(cluster, "token", "list", "--json", *state)
    assert [each["name"] for each in json.loads(out)] == ["prometheus"], err

    await reread(cluster)
    code, _, err = await minflinkd(cluster, "list", "--token-file", str(file))
    assert code == 0, err
    code, _, err = await minflinkd(cluster, "handover", MINFLINKD_TOKEN_FILE=str(file))
    assert (code, "needs the role admin, and prometheus has view" in err) == (2, True), err

    code, _, err = await minflinkd(cluster, "token", "revoke", "prometheus", *state)
    assert code == 0, err
    await reread(cluster)
    code, _, err = await minflinkd(cluster, "list", "--token-file", str(file))
    assert (code, "The token is not valid here" in err) == (2, True), err
    assert token.strip() not in cluster.log


async def reread(cluster: Cluster) -> None:
    before = cluster.log.count("tokens read")
    cluster.process.send_signal(signal.SIGHUP)
    await until(lambda: cluster.log.count("tokens read") > before, "the tokens are read again")


async def test_a_printed_link_logs_a_browser_in_and_changes_are_written_down(cluster: Cluster) -> None:
    """`minflinkd open` (E40), and the audit log (E43)."""
    code, link, err = await minflinkd(cluster, "open")
    assert code == 0, err
    jar = aiohttp.CookieJar(unsafe=True)  # keeps cookies of an address, as browsers do
    async with aiohttp.ClientSession(cookie_jar=jar) as browser:
        async with browser.get(link.strip()) as response:
            assert response.status == 200
        async with browser.get(f"{cluster.url}/jobs") as response:
            assert response.status == 200
        own = {"Origin": cluster.url, "Sec-Fetch-Site": "same-origin"}
        async with browser.post(f"{cluster.url}/jobs", json={"name": "none"}, headers=own) as response:
            assert response.status == 400
    audit = cluster.state / "audit.log"

    def lines() -> list[dict[str, object]]:
        found = [json.loads(line) for line in audit.read_text().splitlines()] if audit.exists() else []
        return found if len(found) > 1 else []

    written = await until(lines, "the changes in the audit log")
    assert [(line["who"], line["path"], line["status"]) for line in written] == [
        (f"uid {os.geteuid()}", "/login/links", 201),
        (f"uid {os.geteuid()}", "/jobs", 400),
    ]
