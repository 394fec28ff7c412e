"""Paths and URLs of job files and artifacts: what they name, relative to what, and what is never shown of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobgraph.document import JobDocument
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.places import Digest, InvalidUrl, Url, file_name, place_of
from minflinkd.runtime.secrets import without_credentials

SHA256 = "9f" * 32


@pytest.mark.parametrize(
    ("job_file", "path", "url"),
    [
        ("https://host/a/job.yaml", "x.py", "https://host/a/x.py"),
        ("https://host/a/job.yaml?sig=1", "lib/x y.py", "https://host/a/lib/x%20y.py"),
        ("https://host/a/job.yaml", "100%.py", "https://host/a/100%25.py"),
        ("https://host/a/job.yaml", "../x.py", "https://host/x.py"),
        ("https://user:pw@host/job.yaml", "x.py", "https://user:pw@host/x.py"),
        ("https://host/a/", "x.py", "https://host/a/x.py"),
        ("https://host", "x.py", "https://host/x.py"),
        ("s3://bucket/a/job.yaml", "x.py", "s3://bucket/a/x.py"),
        ("memory://job.yaml", "x.py", "memory://x.py"),
        ("file:///home/x/job.yaml", "../y.py", "file:///home/y.py"),
        (
            "zip://job.yaml::https://host/release.zip?sig=1",
            "lib/x.py",
            "zip://lib/x.py::https://host/release.zip?sig=1",
        ),
    ],
)
def test_a_relative_path_is_beside_the_job_file(job_file: str, path: str, url: str) -> None:
    assert place_of(path, Url(job_file)).file == Url(url)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/etc/passwd", "a file of this machine"),
        ("file:///etc/passwd", "a file of this machine"),
        ("zip://x.py::/srv/x.zip", "a file of this machine"),
        ("zip://x.py::file:///srv/x.zip", "a file of this machine"),
        ("../../x.py", "leads out of"),
    ],
)
def test_a_job_file_at_a_url_names_nothing_on_this_machine(path: str, told: str) -> None:
    """Otherwise whoever writes it could have files of the user's uploaded."""
    with pytest.raises(InvalidUrl, match=told):
        place_of(path, Url("https://host/a/job.yaml"))


def test_an_archive_is_beside_the_job_file_too() -> None:
    path = "zip://lib/x.py::release.zip"
    assert place_of(path, Url("https://host/a/job.yaml")).file == Url("zip://lib/x.py::https://host/a/release.zip")
    assert place_of(path, Path("/jobs")).file == Url("zip://lib/x.py::file:///jobs/release.zip")


def test_a_hash_belongs_to_a_url_or_a_path() -> None:
    assert place_of(f"https://host/x.whl#sha256={SHA256.upper()}").digest == Digest("sha256", SHA256)
    place = place_of(f"lib/x#1.py#sha256={SHA256}", Path("/jobs"))
    assert (place.file, place.digest) == (Path("/jobs/lib/x#1.py"), Digest("sha256", SHA256))


def test_the_name_of_a_local_file_may_have_a_number_sign() -> None:
    assert place_of("x#1.py").file == Path("x#1.py")
    assert file_name("lib/x#1.py") == "x#1.py"


@pytest.mark.parametrize(
    ("fragment", "told"),
    [
        ("sha265=" + SHA256, "is no hash"),
        ("md5=" + "0" * 32, "is no hash"),
        ("egg=x", "is no hash"),
        ("sha256=abc", "has 3 hex digits instead of 64"),
        ("", "is no hash"),
    ],
)
def test_a_misspelt_hash_is_refused_rather_than_not_compared(fragment: str, told: str) -> None:
    with pytest.raises(InvalidUrl, match=told):
        place_of(f"https://host/x.whl#{fragment}")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("lib/flights.py", "flights.py"),
        (f"flights.py#sha256={SHA256}", "flights.py"),
        ("https://host/lib/x-1.0%2Bcpu-py3-none-any.whl?sig=a/b#sha256=" + SHA256, "x-1.0+cpu-py3-none-any.whl"),
        ("s3://bucket/lib/x.whl", "x.whl"),
        ("zip://lib/x.py::https://host/release.zip", "x.py"),
    ],
)
def test_the_name_of_an_artifact_is_that_of_its_file(text: str, name: str) -> None:
    assert file_name(text) == name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pw@host/x.whl", "https://******@host/x.whl"),
        ("https://token@host/x.whl", "https://******@host/x.whl"),
        ("https://host:8080/pkg@1/x.whl", "https://host:8080/pkg@1/x.whl"),
        ("sftp://user:p/w@host/x.whl", "sftp://******@host/x.whl"),
        ("https://host/x.whl?X-Amz-Signature=a::b", "https://host/x.whl?******"),
        ("zip://x.py::https://u:p@host/x.zip?sig=1", "zip://x.py::https://******@host/x.zip?******"),
        ("get https://u:p@h/a?b=c and ftp://u:q@h/", "get https://******@h/a?****** and ftp://******@h/"),
    ],
)
def test_a_url_is_shown_without_credentials(text: str, shown: str) -> None:
    """E40."""
    assert without_credentials(text) == shown
    if " " not in text:
        assert (str(Url(text)), repr(Url(text))) == (shown, f"Url({shown!r})")


def test_a_fault_of_a_url_is_one_of_the_document() -> None:
    """All faults of a job are reported at once (J4), none with a password (E40)."""
    value: dict[str, Any] = {
        "name": "job",
        "artifacts": ["https://u:pa55@host/a.py#md5=1", "/etc/b.py", "https://u:pa55@host/c.exe"],
        "vertices": {},
    }
    with pytest.raises(InvalidJobGraph) as caught:
        JobDocument(value, base=Url("https://host/job.yaml")).job()
    faults = {fault.path: fault for fault in caught.value.faults}
    assert (faults["artifacts[0]"].code, faults["artifacts[1]"].code) == ("invalid-url", "invalid-url")
    assert "cannot be loaded" in faults["artifacts[2]"].problem
    assert "pa55" not in str(caught.value)


def test_artifacts_that_are_not_a_list_are_shown_without_credentials() -> None:
    """E40."""
    with pytest.raises(InvalidJobGraph) as caught:
        JobDocument({"name": "job", "artifacts": "https://u:pa55@host/a.py", "vertices": {}}).job()
    assert "[https://******@host/a.py]" in str(caught.value)
    assert "pa55" not in str(caught.value)
