"""Logs that TaskManagers left on the daemon's host when they ended."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.unit.rest.parties import TM

Http = aiohttp.ClientSession
ENDED = "tm-ffffffffffff"
TEXT = b"".join(b"line %05d\n" % number for number in range(50_000))  # larger than one piece


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "taskmanagers" / ENDED
    (home / "log").mkdir(parents=True)
    (home / "log" / "taskmanager.log").write_bytes(TEXT)
    (home / "log" / "session.log").write_bytes(b"printed\n")
    (home / "secret").write_bytes(b"none of anybody's business\n")
    return home


@pytest.mark.usefixtures("home")
async def test_they_are_listed_and_read_as_those_of_a_living_one(http: Http) -> None:
    """Logs of an ended TaskManager are served whole, by range, and as Flink's main log."""
    async with http.get(f"/taskmanagers/{ENDED}/logs") as response:
        listed = {log["name"]: log["size"] for log in (await response.json())["logs"]}
    assert listed == {"session.log": 8, "taskmanager.log": len(TEXT)}
    for path, wanted in (
        ("logs/taskmanager.log", TEXT),
        ("logs/taskmanager.log?offset=-30&length=10", TEXT[-30:-20]),
        ("log", TEXT),
    ):
        async with http.get(f"/taskmanagers/{ENDED}/{path}") as response:
            assert (response.status, await response.read()) == (200, wanted)
            assert response.headers["X-Log-Size"] == str(len(TEXT))


async def test_nothing_but_regular_files_of_its_log_directory_is_served(http: Http, home: Path) -> None:
    """Files next to the directory, and files behind links, are not served (E40)."""
    (home / "log" / "link.log").symlink_to(home / "secret")
    for name in ("link.log", "..%2Fsecret", "secret", "none.log"):
        async with http.get(f"/taskmanagers/{ENDED}/logs/{name}") as response:
            assert response.status in (400, 404), name


async def test_of_a_registered_taskmanager_the_taskmanager_is_asked(http: Http, home: Path) -> None:
    """The directory with its id on this host may belong to a TaskManager of another host."""
    home.rename(home.with_name(TM))
    async with http.get(f"/taskmanagers/{TM}/logs/session.log") as response:
        assert await response.read() == b"spark\n"


async def test_one_that_has_left_nothing_here_is_not_found(http: Http) -> None:
    async with http.get(f"/taskmanagers/{ENDED}/logs/taskmanager.log") as response:
        assert response.status == 404
        assert "on its own host" in (await response.json())["hint"]
