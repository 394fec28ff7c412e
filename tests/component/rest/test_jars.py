"""A job is uploaded as an archive or a job file, looked at, and run, as Flink's dashboard does with jars."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import decode
from minflinkd.rest.errors import InvalidRequest
from minflinkd.rest.flink import uploads
from tests.unit.rest.parties import Dispatcher

Http = aiohttp.ClientSession

JOB: dict[str, Any] = {
    "name": "flights",
    "vertices": [
        {"id": "numbers", "source": {"format": "rate"}},
        {"id": "out", "inputs": [{"id": "numbers", "exchange": True}], "sink": {"format": "collect"}},
    ],
}


def zipped(**files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), data)
    return out.getvalue()


def as_json(**more: Any) -> bytes:
    return json.dumps({**JOB, **more}).encode()


async def upload(http: Http, name: str, data: bytes, status: int = 200) -> str:
    form = aiohttp.FormData(quote_fields=False)
    form.add_field("jarfile", data, filename=name)
    async with http.post("/jars/upload", data=form) as response:
        assert response.status == status, await response.text()
        answer = await response.json()
        return Path(answer["filename"]).name if status == 200 else answer["errors"][0]


async def test_an_uploaded_job_is_listed_planned_and_deleted(http: Http) -> None:
    """Its entries are the job files in it."""
    jar = await upload(http, "job.json", as_json())
    async with http.get("/jars") as response:
        [file] = (await response.json())["files"]
    assert (file["id"], file["name"], file["entry"]) == (
        jar,
        "job.json",
        [{"name": "job.json", "description": "job flights"}],
    )
    async with http.get(f"/jars/{jar}/plan?parallelism=3") as response:
        plan = (await response.json())["plan"]
    assert [(node["description"], node["parallelism"]) for node in plan["nodes"]] == [
        ("numbers (source)", 3),
        ("out (sink)", 3),
    ]
    async with http.delete(f"/jars/{jar}") as response:
        assert response.status == 200
    async with http.get("/jars") as response:
        assert (await response.json())["files"] == []
    async with http.get(f"/jars/{jar}/plan") as response:
        assert response.status == 404


async def test_an_uploaded_job_is_run(http: Http, dispatcher: Dispatcher) -> None:
    """With params, another parallelism and a savepoint, from the body or from the query."""
    jar = await upload(http, "job.json", as_json(params={"minutes": 60, "kept": True}))
    body = {"parallelism": "4", "programArgsList": ["--minutes", "5"], "savepointPath": "file:///savepoints/1"}
    async with http.post(f"/jars/{jar}/run?allowNonRestoredState=true", json=body) as response:
        assert response.status == 200, await response.text()
        answer = await response.json()
    [submitted] = dispatcher.submissions
    graph = decode(submitted.document)
    assert answer == {"jobid": submitted.job_id, "applicationId": submitted.job_id}
    assert (graph.parallelism, graph.params) == (4, {"minutes": 5, "kept": True})
    assert graph.restore is not None
    assert (graph.restore.path, graph.restore.allow_non_restored_state) == ("file:///savepoints/1", True)
    async with http.post(f"/jars/{jar}/run-application?programArg=minutes%3D7", json={}) as response:
        assert response.status == 202
    assert decode(dispatcher.submissions[1].document).params["minutes"] == 7


async def test_faults_of_an_uploaded_job_are_answered(http: Http, dispatcher: Dispatcher) -> None:
    jar = await upload(http, "job.json", as_json(parallelism=0))
    async with http.post(f"/jars/{jar}/run", json={}) as response:
        assert response.status == 400
        assert "parallelism" in str(await response.json())
    dispatcher.faults = (GraphFault(path="vertices.out", problem="a fault that Spark has found"),)
    good = await upload(http, "good.json", as_json())
    async with http.post(f"/jars/{good}/run", json={}) as response:
        assert response.status == 400
        assert "a fault that Spark has found" in str(await response.json())


async def test_a_file_without_a_job_is_refused(http: Http) -> None:
    assert "no job file" in await upload(http, "lib.zip", zipped(lib_dot_py=b"x = 1"), 400)
    assert "neither an archive nor a job file" in await upload(http, "lib.py", b"x = 1", 400)
    assert "cannot be read" in await upload(http, "lib.zip", b"no zip", 400)
    async with http.post("/jars/upload", json={}) as response:
        assert response.status == 415
    async with http.get("/jars") as response:
        assert (await response.json())["files"] == []


async def test_a_name_cannot_lead_elsewhere(http: Http, tmp_path: Path) -> None:
    jar = await upload(http, "../../etc/job.json", as_json())
    assert jar.endswith("_job.json")
    assert [path.name for path in (tmp_path / "uploads").iterdir()] == [jar]
    for name in ("..", "x", "0" * 32 + "_gone.zip"):
        async with http.delete(f"/jars/{name}") as response:
            assert response.status in (400, 404, 405)


def kept(directory: Path, name: str, data: bytes) -> uploads.Upload:
    store = uploads.Uploads(directory)
    draft = store.draft()
    draft.write_bytes(data)
    return store.keep(draft, name)


def test_the_artifacts_of_a_job_come_from_its_archive(tmp_path: Path) -> None:
    """They are named relative to the job file. A job file without artifacts has the archive as its artifact."""
    named = as_json(artifacts=["lib/code.py", {"path": "../data.zip", "name": "other.zip"}])
    files = {"jobs__job_dot_json": named, "jobs__lib__code_dot_py": b"code", "data_dot_zip": b"data"}
    data = zipped(other_dot_yaml=b"a: 1", **files)
    found = kept(tmp_path, "jobs.zip", data)
    assert found.entries == {"jobs/job.json": "flights"}
    assert uploads.read_job(found, None).artifacts == {"code.py": b"code", "other.zip": b"data"}
    alone = zipped(job_dot_json=as_json(), code_dot_py=b"code")
    assert uploads.read_job(kept(tmp_path, "alone.whl", alone), "job.json").artifacts == {"alone.whl": alone}


def test_an_archive_may_be_a_tar(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in {"./job.json": as_json(artifacts=["code.py"]), "./code.py": b"code"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    found = kept(tmp_path, "job.tar.gz", out.getvalue())
    assert uploads.read_job(found, None).artifacts == {"code.py": b"code"}


@pytest.mark.parametrize("path", ["/etc/passwd", "s3://bucket/code.py", "../../code.py", "gone.py"])
def test_artifacts_elsewhere_are_refused(tmp_path: Path, path: str) -> None:
    found = kept(tmp_path, "job.zip", zipped(job_dot_json=as_json(artifacts=[path])))
    with pytest.raises(InvalidRequest):
        uploads.read_job(found, None)


def test_what_is_unpacked_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes of an archive may unpack to any size."""
    monkeypatch.setattr(uploads, "LARGEST_ARTIFACTS", 1000)
    data = zipped(job_dot_json=as_json(artifacts=["a.py", "b.py"]), a_dot_py=b"a" * 600, b_dot_py=b"b" * 600)
    with pytest.raises(InvalidRequest, match="too large"):
        uploads.read_job(kept(tmp_path, "job.zip", data), None)


def test_arguments_are_params() -> None:
    found = uploads.as_params(("--minutes", "5", "name=x y", "--flag=true"))
    assert found == {"minutes": 5, "name": "x y", "flag": True}
    with pytest.raises(InvalidRequest):
        uploads.as_params(("--minutes",))
