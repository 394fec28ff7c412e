"""Job files and artifacts at URLs, through the commands, from a real web server to a real BlobServer."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minflinkd.cli.main import main
from minflinkd.rpc.jobs import HotRestartJob
from tests.component.cli.conftest import Command, RunningDaemon
from tests.unit.rest.parties import RUNNING
from tests.web_server import WebServer, web_server

JOB = """\
name: carrier-delays
artifacts: [lib/flights.py]
vertices:
  flights:
    source: {format: json, path: /data/flights, schema: "carrier STRING, delay DOUBLE"}
  late:
    inputs: [flights]
    python: flights:late
  out:
    inputs: [late]
    sink: {format: parquet, path: /data/out}
"""
CODE = b"def late(inputs, params):\n    return inputs['flights']\n"
SHA256 = hashlib.sha256(CODE).hexdigest()


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        server.files = {"/release/job.yaml": JOB.encode(), "/release/lib/flights.py": CODE}
        yield server


def check(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments, "--no-spark"])


def test_a_job_at_a_url_brings_the_artifacts_beside_it(command: Command, daemon: RunningDaemon, web: WebServer) -> None:
    """The daemon gets their content and never the URL (E40)."""
    shown = command("run", f"{web.url}/release/job.yaml?sig=s1gnature")
    assert shown.exit_code == 0, shown.output
    document = daemon.dispatcher.submissions[0].document
    (artifact,) = json.loads(document)["artifacts"]
    assert (artifact["name"], SHA256 in artifact["key"]) == ("flights.py", True)
    assert web.url.encode() not in bytes(document)
    assert "s1gnature" not in shown.output
    assert len(daemon.stored()) == 1


def test_a_job_file_in_an_archive_at_a_url_brings_what_is_in_the_archive(
    command: Command, daemon: RunningDaemon, web: WebServer, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "release.zip", "w") as archive:
        archive.writestr("job.yaml", JOB)
        archive.writestr("lib/flights.py", CODE)
    web.files["/release.zip"] = (tmp_path / "release.zip").read_bytes()
    shown = command("run", f"zip://job.yaml::{web.url}/release.zip")
    assert shown.exit_code == 0, shown.output
    assert SHA256 in str(daemon.stored())


def test_artifacts_of_a_local_job_may_be_at_urls(
    command: Command, daemon: RunningDaemon, web: WebServer, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB.replace("lib/flights.py", f"'{web.url}/release/lib/flights.py?v=1#sha256={SHA256}'"))
    shown = command("run", str(file))
    assert shown.exit_code == 0, shown.output
    assert f"Fetching {web.url}/release/lib/flights.py?******" in shown.stderr
    assert SHA256 in str(daemon.stored())


def test_artifacts_that_cannot_be_had_are_faults_with_their_lines(
    command: Command, daemon: RunningDaemon, web: WebServer, tmp_path: Path
) -> None:
    """They are reported with all others (J4), each with its code. Nothing is uploaded, no password is shown (E40)."""
    file = tmp_path / "job.yaml"
    (tmp_path / "here.py").write_bytes(CODE)
    with_password = web.url.replace("://", "://reader:pa55-word@")
    artifacts = [
        f"{with_password}/release/lib/flights.py#sha256={'0' * 64}",
        f"{with_password}/release/none.py",
        f"here.py#sha256={'0' * 64}",
        "nohost:///x.py",
        f"{with_password}/release/lib/a.py#md5=1",
    ]
    listed = "\n".join(f"  - '{artifact}'" for artifact in artifacts)
    file.write_text(JOB.replace("artifacts: [lib/flights.py]", f"artifacts:\n{listed}").replace("[late]", "[lat]"))
    shown = command("run", str(file))
    assert shown.exit_code == 2
    for line, code in ((3, "hash-differs"), (4, "url-not-found"), (5, "hash-differs"), (6, "url-unknown-scheme")):
        (told,) = [
            text for text in shown.stderr.splitlines() if text.startswith(f"{file}:{line}: artifacts[{line - 3}]")
        ]
        assert told.endswith(f"[{code}]"), told
    assert f"{file}:7: artifacts[4]: what follows # in" in shown.stderr
    assert f"{file}:15: vertices.out.inputs[0]" in shown.stderr
    assert daemon.stored() == []
    assert [submission.dry_run for submission in daemon.dispatcher.submissions] == [True]  # Spark may find more
    told_daemon = bytes(daemon.dispatcher.submissions[0].document).decode()
    assert "pa55" not in shown.output + told_daemon


def test_a_job_file_that_cannot_be_fetched_ends_the_command_with_a_code(command: Command, web: WebServer) -> None:
    web.statuses["/busy.yaml"] = 503
    missing = command("run", f"{web.url}/none.yaml", "--json")
    assert (missing.exit_code, json.loads(missing.stderr)["code"]) == (2, "url-not-found")
    busy = command("run", f"{web.url}/busy.yaml", "--json")
    assert (busy.exit_code, json.loads(busy.stderr)["code"]) == (3, "url-unreachable")
    damaged = command("run", f"{web.url}/release/job.yaml#sha256={SHA256}", "--json")
    assert (damaged.exit_code, json.loads(damaged.stderr)["code"]) == (2, "hash-differs")
    assert command("run", f"{web.url}/release/job.yaml#sha256=1").exit_code == 2


def test_check_reads_urls_and_compares_hashes(web: WebServer) -> None:
    """A CI learns before the release that an artifact is not what the job file says."""
    url = f"{web.url}/release/job.yaml"
    assert f"{url} has no faults" in check(url).stdout
    web.files["/release/job.yaml"] = JOB.replace("flights.py", f"flights.py#sha256={'0' * 64}").encode()
    shown = check(url)
    assert (shown.exit_code, f"{url}:2: artifacts[0]: " in shown.stderr, "[hash-differs]" in shown.stderr) == (
        1,
        True,
        True,
    )
    missing = check(f"{web.url}/none.yaml?sig=s1gnature")
    assert (missing.exit_code, "s1gnature" in missing.output) == (2, False)
    assert f"There is no file {web.url}/none.yaml?******" in missing.stderr


def test_a_hot_restart_takes_a_version_at_a_url(command: Command, daemon: RunningDaemon, web: WebServer) -> None:
    """H1."""
    shown = command("hot-restart", RUNNING, f"{web.url}/release/job.yaml", "--yes")
    assert shown.exit_code == 0, shown.output
    (request,) = [request for request in daemon.dispatcher.restarts if isinstance(request, HotRestartJob)]
    assert SHA256 in json.loads(request.document)["artifacts"][0]["key"]


def test_faults_of_a_job_at_a_url_have_its_lines(web: WebServer) -> None:
    web.files["/release/job.yaml"] = JOB.replace("[late]", "[lat]").encode()
    assert f"{web.url}/release/job.yaml:10: vertices.out.inputs[0]" in check(f"{web.url}/release/job.yaml").stderr


def test_json_is_told_by_the_name_in_the_url(web: WebServer) -> None:
    web.files["/release/job.json"] = b'{"name": "job", "name": "job", "vertices": {}}'
    assert "is twice in one mapping" in check(f"{web.url}/release/job.json?v=1").stderr
