"""Which archives of jobs are refused before they are unpacked (E45)."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from minflinkd.jobgraph import archives
from minflinkd.jobgraph.archives import ArchiveLimits, Contents, contents, directory_size, why_refused

LIMITS = ArchiveLimits(unpacked=1 << 30, members=100, ratio=50)


def archive(path: Path, members: int, size: int = 1) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for n in range(members):
            made.writestr(f"package/module_{n}.py", b"0" * size)
    return path


def test_the_directory_of_an_archive_says_what_it_unpacks_to(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", members=3, size=1000)
    assert contents(path, LIMITS) == Contents(tuple(f"package/module_{n}.py" for n in range(3)), 3000)


@pytest.mark.parametrize(
    ("found", "packed", "units", "why"),
    [
        (Contents(("a",), 80 << 20), 4 << 20, 1, ""),
        (Contents(("a",), 60 << 20), 1000, 1, ""),  # too little to do harm
        (Contents(("a",), 80 << 20), 1 << 20, 1, "it unpacks to 80 times its size; 50 times are allowed"),
        (Contents(("a",), 2 << 30), 1 << 30, 1, "it unpacks to 2,147,483,648 bytes; at most 1 GiB are allowed"),
        (Contents(("a",) * 101, 5), 5, 1, "it holds 101 files; at most 100 are allowed"),
        (Contents(("a",), 5), 5, 2001, "it has classes in 2,001 packages of Java; at most 2,000 are allowed"),
    ],
)
def test_an_archive_is_refused_with_the_figure_and_the_limit(
    found: Contents, packed: int, units: int, why: str
) -> None:
    told = why_refused(found, packed, [f"java:{n}" for n in range(units)], LIMITS)
    assert told.startswith(why)
    assert bool(told) is bool(why)


def test_a_directory_that_would_fill_the_memory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reads it as a whole. Its size is at the end of the file."""
    path = archive(tmp_path / "a.zip", members=2000)
    monkeypatch.setattr(archives.zipfile, "ZipFile", lambda _: pytest.fail("it was read"))
    told = contents(path, LIMITS)
    assert told == "it holds too many files; at most 100 are allowed (artifacts.max-members)"


def test_the_size_of_the_directory_of_a_large_archive_is_found_too(tmp_path: Path) -> None:
    """An archive of more than 65,535 files has another record at its end."""
    path = archive(tmp_path / "a.zip", members=66_000)
    with zipfile.ZipFile(path) as made:
        actual = path.stat().st_size - made.start_dir
    assert 0 < actual - directory_size(path) < 200


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x05\x06", b"no archive" * 1000, b"PK\x05\x06" + b"\xff" * 18])
def test_what_is_no_archive_has_no_contents(tmp_path: Path, content: bytes) -> None:
    """The analysis of the job says so, with all its other faults."""
    (tmp_path / "a.zip").write_bytes(content)
    refused = "it holds too many files; at most 100 are allowed (artifacts.max-members)"
    assert contents(tmp_path / "a.zip", LIMITS) in (Contents(), refused)
