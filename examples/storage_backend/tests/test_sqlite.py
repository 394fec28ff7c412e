"""Runs minflinkd's conformance tests against a storage backend that is not its own."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from minflinkd_sqlite import SqliteStorage

from minflinkd.storage.conformance import StorageConformance, names, read, write
from minflinkd.storage.interface import InvalidPath, StorageCorrupt
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.registry import Storages


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"{tmp_path}/objects.db/tests"


@pytest_asyncio.fixture
async def storage() -> AsyncIterator[SqliteStorage]:
    storage = SqliteStorage()
    yield storage
    await storage.aclose()


class TestSqliteStorage(StorageConformance):
    entries = 250
    hurried = CommonOptions(request_timeout=1, deadline=60, retries=50, pause=0.01, longest_pause=0.1)

    @pytest.fixture(autouse=True)
    def _small_pages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("minflinkd_sqlite._PAGE", 100)


WRITER = """
import asyncio, sys
from minflinkd_sqlite import SqliteStorage
async def main():
    writer = await SqliteStorage().create(sys.argv[1])
    while True:
        await writer.append(bytes(1 << 20))
        print("more", flush=True)
asyncio.run(main())
"""


async def test_a_killed_writer_leaves_nothing_visible(storage: SqliteStorage, prefix: str) -> None:
    argv = [sys.executable, "-c", WRITER, f"{prefix}/x"]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert [await process.stdout.readline() for _ in range(3)] == [b"more\n"] * 3
        process.kill()
        await process.communicate()
    assert await names(storage, prefix) == []
    await write(storage, f"{prefix}/x", b"1")
    assert await read(storage, f"{prefix}/x") == b"1"


async def test_a_new_database_may_be_used_by_many_at_once(storage: SqliteStorage, tmp_path: Path) -> None:
    for number in range(20):
        async with asyncio.TaskGroup() as group:
            for name in "abcdef":
                group.create_task(write(storage, f"{tmp_path}/{number}.db/{name}", b"1"))
        assert await names(storage, f"{tmp_path}/{number}.db") == list("abcdef")


async def test_what_is_no_database_is_corrupt(storage: SqliteStorage, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"no database" * 100)
    with pytest.raises(StorageCorrupt, match=r"text\.db/x"):
        await storage.stat(f"{tmp_path}/text.db/x")


@pytest.mark.parametrize("path", ["/dir/x", "dir/a.db/x", "/dir/../a.db/x", "/a.db/x\0"])
async def test_what_names_no_object_is_refused(storage: SqliteStorage, path: str) -> None:
    with pytest.raises(InvalidPath):
        await storage.stat(path)


async def test_a_place_is_named_by_a_uri(storage: SqliteStorage, tmp_path: Path) -> None:
    storages = Storages()
    storages.add(storage)
    place = storages.at(f"sqlite://{tmp_path}/objects.db")
    await place.child("a", "x").write_bytes(b"1")
    assert [place.relative(entry.path) async for entry in place.list()] == ["a/x"]
    assert await place.delete_tree() == 1


@pytest.mark.slow
def test_the_package_is_found_once_it_is_installed(tmp_path: Path) -> None:
    """S1: nothing in minflinkd has to change for it."""
    package, target = Path(__file__).parents[1], tmp_path / "site"
    source = tmp_path / "source"
    shutil.copytree(package, source, ignore=shutil.ignore_patterns("__pycache__"))  # building leaves files behind
    how = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        *how,
        "--target",
        str(target),
        str(source),
    ]
    subprocess.run(install, check=True, timeout=300)

    def plugins(*arguments: str) -> list[dict[str, object]]:
        argv = [sys.executable, "-m", "minflinkd", "plugins", "--json", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(target)}
        answer = subprocess.run(argv, check=True, stdout=subprocess.PIPE, env=environment, cwd=tmp_path, timeout=60)
        found: list[dict[str, object]] = json.loads(answer.stdout)
        return found

    sqlite = next(plugin for plugin in plugins() if plugin["scheme"] == "sqlite")
    assert (sqlite["package"], sqlite["version"], sqlite["problem"]) == ("minflinkd-sqlite", "0.1.0", "")
    shown = plugins("--check", f"sqlite://{tmp_path}/objects.db/x")
    assert len(shown) == 5
    assert all(finding["declared"] and finding["holds"] for finding in shown)
