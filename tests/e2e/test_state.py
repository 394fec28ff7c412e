"""The state of a running job is looked at over HTTP and by the command line, from checkpoints and savepoints (E19c)."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from minflinkd.rest.error_form import CODE
from tests.cluster import Cluster, write_job
from tests.e2e.command import minflinkd

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

EPOCH = 1_700_000_000


class Carriers:
    """A job that counts rows by carrier for ever, and what it must have counted."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.counts: Counter[str] = Counter()
        (base / "in").mkdir()

    def file(self, number: int, carriers: Counter[str]) -> None:
        rows = [json.dumps({"carrier": carrier}) for carrier in carriers.elements()]
        staged = self.base / "in" / f"_{number}.json"
        staged.write_text("\n".join(rows))
        os.utime(staged, (EPOCH + number, EPOCH + number))
        staged.rename(self.base / "in" / f"{number}.json")
        self.counts += carriers

    def write(self) -> Path:
        document = {
            "name": f"carriers-{self.base.name}",
            "checkpointing": {"interval": "1 h"},
            "vertices": {
                "flights": {
                    "source": {"format": "json", "path": str(self.base / "in"), "schema": "carrier STRING"},
                },
                "totals": {
                    "inputs": ["flights"],
                    "sql": "SELECT carrier, count(*) AS n FROM flights GROUP BY carrier",
                },
                "out": {"inputs": ["totals"], "sink": {"format": "collect"}, "output-mode": "update"},
            },
        }
        return write_job(self.base / "job.json", document)


async def until_counted(cluster: Cluster, job_id: str, rows: int) -> None:
    await cluster.await_job(job_id, lambda job: job.vertices[0].metrics.read_records >= rows, f"has read {rows} rows")


async def answered(cluster: Cluster, *arguments: str) -> Any:
    code, out, err = await minflinkd(cluster, "state", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


async def test_state_is_shown_from_checkpoints_and_savepoints(cluster: Cluster, tmp_path: Path) -> None:
    """Rows, one key, a SELECT, what grew since a savepoint, faults; and the job runs on as if nothing was (E19c)."""
    job = Carriers(tmp_path)
    job.file(1, Counter({"AA": 5, "DL": 2}))
    file = job.write()
    name = json.loads(file.read_text())["name"]
    job_id = await cluster.submit(file)
    await cluster.await_state(job_id, "RUNNING")
    await until_counted(cluster, job_id, 7)
    savepoint = await cluster.client.savepoint(job_id, str(tmp_path / "savepoints"))

    job.file(2, Counter({"AA": 1, "UA": 90}))
    await until_counted(cluster, job_id, 98)
    number = await cluster.client.checkpoint(job_id)

    found = await answered(cluster, name)
    assert found["checkpoint"]["id"] == number
    assert {row["key"]["carrier"]: row["value"]["count"] for row in found["rows"]} == job.counts
    (store,) = found["stores"]
    assert (store["vertex"], store["totals"]["rows"], store["totals"]["keys"]) == ("totals", 3, 3)
    assert {each["key"]["carrier"] for each in store["totals"]["largest-keys"]} == set(job.counts)
    one = await answered(cluster, name, "totals", "--key", "carrier=UA", "--rows-only")
    assert [row["value"]["count"] for row in one["rows"]] == [90]
    old = await answered(cluster, name, "flights", "--checkpoint", savepoint)
    assert old["checkpoint"]["is-savepoint"]
    assert {row["key"]["carrier"]: row["value"]["count"] for row in old["rows"]} == {"AA": 5, "DL": 2}
    query = "SELECT key.carrier, value.count FROM state ORDER BY 2 DESC"
    assert (await answered(cluster, name, "--sql", query))["result"]["rows"] == [["UA", 90], ["AA", 6], ["DL", 2]]
    (growth,) = (await answered(cluster, name, "--since", savepoint))["stores"]
    assert (growth["keys-added"], growth["keys-removed"], growth["before"]["rows"], growth["after"]["rows"]) == (
        1,
        0,
        2,
        3,
    )
    assert [each["key"] for each in growth["grown-keys"]] == [{"carrier": "UA"}]

    code, out, _ = await minflinkd(cluster, "state", name)
    assert code == 0
    assert f"Checkpoint {number}" in out
    assert '{"carrier": "UA"}' in out
    code, out, _ = await minflinkd(cluster, "state", name, "--since", savepoint)
    assert code == 0
    assert "2 -> 3" in out
    code, out, _ = await minflinkd(cluster, "state", name, "--sql", query)
    assert (code, [line.split() for line in out.splitlines()[-3:]]) == (0, [["UA", "90"], ["AA", "6"], ["DL", "2"]])

    for arguments, code, wanted in [
        (("--sql", "SELECT * FROM text.`/etc/passwd`"), 2, "reads text./etc/passwd"),
        (("nothing",), 4, "no task 'nothing'"),
        (("--checkpoint", "999"), 4, "no checkpoint 999"),
        (("--checkpoint", str(tmp_path)), 4, "There is no file:"),
        (("--store", "7"), 4, "no store"),
    ]:
        got, _, err = await minflinkd(cluster, "state", name, *arguments)
        assert (got, wanted in err) == (code, True), err
    async with aiohttp.ClientSession(headers=cluster.headers) as http:
        url = f"{cluster.client.url}/jobs/{job_id}/vertices/flights/state"
        async with http.get(url, params={"sql": "SELECT reflect('java.lang.System', 'exit', 1) FROM state"}) as refused:
            assert (refused.status, refused.headers[CODE]) == (400, "state-query-refused")
        async with http.get(f"{cluster.client.url}/jobs/{job_id}/state") as tasks:
            (task,) = (await tasks.json())["tasks"]
            assert (task["task-id"], task["operators"][0]["vertex"]) == ("flights", "totals")

    assert list(cluster.launch.base.glob("**/attempts/state-*")) == []
    shown = await cluster.client.job(job_id)
    assert (shown.state, shown.minflinkd.restarts) == ("RUNNING", 0)
    await cluster.cancel(job_id)
    ended = await answered(cluster, job_id, "flights", "--checkpoint", savepoint)
    assert len(ended["rows"]) == 2
