"""Storages without a backend are read through fsspec: from memory, and from a real web server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import fsspec
import pytest

from minflinkd.checkpoint.store import CheckpointStorageUnfit, require_fit
from minflinkd.storage.conformance import content, names, read
from minflinkd.storage.interface import (
    NotSupported,
    ObjectNotFound,
    PermissionDenied,
    StorageError,
    StorageUnavailable,
)
from minflinkd.storage.options import InvalidStorageOption
from minflinkd.storage.registry import Storages
from tests.web_server import WebServer, web_server

DATA = content(9 << 20)  # three requests


@pytest.fixture
async def storages() -> AsyncIterator[Storages]:
    quick = {f"{scheme}.{option}": "1" for scheme in ("http", "memory") for option in ("retries", "pause")}
    opened = Storages(quick)
    yield opened
    await opened.aclose()


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        server.files = {
            "/s/_metadata": b"metadata",
            "/s/x.seg": DATA,
            "/s": b'<a href="_metadata">_metadata</a> <a href="x.seg">x.seg</a>',
            "/s/": b'<a href="_metadata">_metadata</a> <a href="x.seg">x.seg</a>',
        }
        yield server


RANGES = ((0, None), (0, 10), (5, 3), (4 << 20, 5), (len(DATA) - 1, 100), (len(DATA), None), (len(DATA) + 5, 1), (3, 0))


@pytest.mark.parametrize("ranges", [True, False])
async def test_a_web_server_is_read_also_if_it_knows_no_ranges(
    web: WebServer, storages: Storages, ranges: bool
) -> None:
    web.ranges = ranges
    place = storages.at(f"{web.url}/s")
    assert await place.child("_metadata").read_bytes() == b"metadata"
    for offset, length in RANGES:
        wanted = DATA[offset:] if length is None else DATA[offset : offset + length]
        assert await read(place.storage, place.child("x.seg").path, offset, length) == wanted, (offset, length)
    found = await place.child("x.seg").stat()
    assert (found.size, found.version, found.modified_ms) == (len(DATA), '"1"', 1795464000000)


async def test_files_in_memory_are_read_and_listed(storages: Storages) -> None:
    system = fsspec.filesystem("memory")
    for name in ("b/y", "b/x", "a", "a%20b"):
        system.pipe_file(f"/listed/{name}", name.encode())
    place = storages.at("memory://listed")
    assert await names(place.storage, place.path) == ["a", "a%20b", "b/x", "b/y"]
    assert await place.child("a%20b").read_bytes() == b"a%20b"
    system.pipe_file("/listed/c", b"new")  # a listing is never an old one
    assert "c" in await names(place.storage, place.path)
    assert await names(place.storage, "listed/none") == []
    with pytest.raises(ObjectNotFound, match="memory: listed/b"):
        await place.child("b").stat()


async def test_a_listing_of_a_web_server_is_that_of_its_page(web: WebServer, storages: Storages) -> None:
    place = storages.at(f"{web.url}/s")
    assert await names(place.storage, place.path) == ["_metadata", "x.seg"]


@pytest.mark.parametrize(
    ("status", "kind"), [(404, ObjectNotFound), (403, PermissionDenied), (503, StorageUnavailable), (418, StorageError)]
)
async def test_an_error_is_of_the_kind_that_the_server_says(
    web: WebServer, storages: Storages, status: int, kind: type[StorageError]
) -> None:
    """fsspec reports each of them as a file that does not exist. A restore that took it for that would be given up."""
    web.statuses["/s/x.seg"] = status
    with pytest.raises(StorageError) as caught:
        await storages.at(f"{web.url}/s/x.seg").stat()
    assert type(caught.value) is kind
    assert "/s/x.seg" in caught.value.message


async def test_a_server_that_is_away_is_transient(storages: Storages) -> None:
    with pytest.raises(StorageUnavailable):
        await storages.at("http://127.0.0.1:1/s/_metadata").read_bytes()


async def test_nothing_is_written_through_fsspec(storages: Storages) -> None:
    """No file system of fsspec says whether its create is exclusive and its rename atomic."""
    place = storages.at("memory://written/x")
    fsspec.filesystem("memory").pipe_file("/written/x", b"0")
    assert place.storage.read_only
    for attempt in (
        lambda: place.write_bytes(b"1"),
        lambda: place.create_exclusive(b"1"),
        lambda: place.rename(place.child("y")),
        place.delete,
    ):
        with pytest.raises(NotSupported, match="only read"):
            await attempt()
    assert fsspec.filesystem("memory").cat_file("/written/x") == b"0"


async def test_checkpoints_are_refused_there_with_the_requirement_that_it_misses(storages: Storages) -> None:
    with pytest.raises(CheckpointStorageUnfit, match="consistent-list"):
        require_fit(storages.at("memory://checkpoints"))


def test_options_are_those_of_every_backend() -> None:
    """S7."""
    with pytest.raises(InvalidStorageOption, match=r"storage\.memory\.part-size: no such option"):
        Storages({"memory.part-size": "1"}).at("memory://x/y")


async def test_credentials_in_a_uri_are_refused_without_showing_them(storages: Storages) -> None:
    """S4."""
    with pytest.raises(StorageError) as caught:
        storages.at("sftp://user:pa55-word@host/x")
    assert "pa55" not in str(caught.value)
