"""`GET /jobs/:jobid/graph` and `POST /jobs/text`: job files for who looks at them, and for who writes them."""

from __future__ import annotations

from typing import Any

import aiohttp

from minflinkd.rest.schemas.answer import FULL_ERRORS
from tests.unit.rest.parties import RUNNING, Dispatcher

Http = aiohttp.ClientSession
YAML = """\
name: clicks
vertices:
  - {id: clicks, source: {format: rate}}
  - {id: out, inputs: [clicks], sink: {format: console}}
"""


async def read(http: Http, text: str, syntax: str = "yaml", status: int = 200) -> Any:
    body, headers = {"text": text, "format": syntax}, {"Accept": FULL_ERRORS}
    async with http.post("/jobs/text", json=body, headers=headers) as response:
        assert response.status == status, await response.text()
        return await response.json(content_type=None)


async def test_a_job_shows_its_file_without_secrets_and_why_it_is_cut(http: Http, dispatcher: Dispatcher) -> None:
    """Values keep their types; only what looks like a secret is hidden, and that is said."""
    async with http.get(f"/jobs/{RUNNING}/graph") as response:
        found = await response.json()
    assert found["document"]["params"] == {"minutes": 60, "db_password": "******"}
    assert found["hidden"]
    assert [task["vertices"] for task in found["tasks"]] == [["flights", "delays"], ["out"]]
    assert found["cuts"] == [{"upstream": "delays", "downstream": "out", "why": "the job asks for it (exchange: true)"}]
    assert found["slots"] == {"default": 2}


async def test_yaml_is_read_as_the_command_line_reads_it(http: Http, dispatcher: Dispatcher) -> None:
    """The document is what `POST /jobs` takes, and the normal form is as jobs are stored. Nothing is submitted."""
    found = await read(http, YAML)
    assert found["name"] == "clicks"
    assert found["document"]["vertices"][1]["inputs"] == ["clicks"]
    assert found["normal"]["vertices"][1]["inputs"] == [{"id": "clicks"}]
    assert found["lines"]["vertices.out"] == 4
    assert found["faults"] == []
    assert dispatcher.submissions == []


async def test_faults_have_their_lines_in_yaml_and_in_json(http: Http, dispatcher: Dispatcher) -> None:
    found = await read(http, YAML.replace("console", "console, pth: /x"))
    assert [(fault["path"], fault["line"]) for fault in found["faults"]] == [("vertices.out.sink.pth", 4)]
    assert found["normal"] is None
    found = await read(http, '{"name": "x",\n "vertices": [\n  {"id": "a", "sauce": {}}]}', "json")
    assert ("vertices.a.sauce", 3) in [(fault["path"], fault["line"]) for fault in found["faults"]]


async def test_a_text_that_is_no_yaml_is_refused_with_its_line(http: Http, dispatcher: Dispatcher) -> None:
    found = await read(http, "name: x\nvertices: [", status=400)
    assert found["faults"][0]["problem"].startswith("this is not YAML")
    assert found["faults"][0]["line"] >= 2
