import os
from pathlib import Path

import pytest

from minflinkd.storage.interface import InvalidPath, ObjectNotFound
from minflinkd.storage.location import relative_path
from minflinkd.storage.registry import Storages, UnknownScheme, parse_uri


@pytest.mark.parametrize(
    ("uri", "parsed"),
    [
        ("/a/b", ("file", "/a/b")),
        ("//a//b/", ("file", "/a/b")),
        ("file:///a/b/", ("file", "/a/b")),
        ("file:/a/b", ("file", "/a/b")),
        ("FILE:///a", ("file", "/a")),
        ("file:///with blank/a%20b", ("file", "/with blank/a%20b")),
        ("s3://bucket/key/", ("s3", "bucket/key")),
        ("hdfs://host:8020/a", ("hdfs", "host:8020/a")),
    ],
)
def test_a_uri_names_a_scheme_and_a_path(uri: str, parsed: tuple[str, str]) -> None:
    """S1"""
    assert parse_uri(uri) == parsed


@pytest.mark.parametrize("uri", ["", "relative", "file://host/a", "file:", "/a/../b", "file:///a\0", "s3://"])
def test_what_names_no_path_is_refused(uri: str) -> None:
    with pytest.raises(InvalidPath):
        parse_uri(uri)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/../b", "/a", "a//b", "a/", "a\0"])
def test_a_child_lies_below_its_parent(name: str) -> None:
    with pytest.raises(InvalidPath):
        relative_path(name)


def test_locations_read_as_uris(tmp_path: Path) -> None:
    location = Storages().at(str(tmp_path))
    child = location.child("a/b", "c")
    assert child.uri == f"file://{tmp_path}/a/b/c"
    assert location.relative(child.path) == "a/b/c"
    assert child.name == "c"
    with pytest.raises(InvalidPath):
        child.relative(location.path)


def test_an_unknown_scheme_names_the_known_ones_and_what_to_install() -> None:
    """S1"""
    with pytest.raises(UnknownScheme, match=r"there are: .*file.*pip install 'minflinkd\[s3\]'"):
        Storages().at("s3://bucket/x")
    with pytest.raises(UnknownScheme, match=r"there are: .*file"):
        Storages().at("gopher://x/y")


async def test_requests_are_counted_by_kind(tmp_path: Path) -> None:
    """S6"""
    storages = Storages()
    place = storages.at(f"file://{tmp_path}")
    await place.child("x").write_bytes(b"12345")
    assert await place.child("x").read_bytes() == b"12345"
    with pytest.raises(ObjectNotFound):
        await place.child("y").stat()
    assert not await place.child("y").exists()
    assert [entry.size async for entry in place.list()] == [5]
    await place.child("x").delete()
    counted = storages.statistics()["file"]
    assert {kind: (one.requests, one.errors, one.bytes) for kind, one in counted.items()} == {
        "create": (1, 0, 5),
        "open_read": (1, 0, 5),
        "stat": (2, 2, 0),
        "list": (1, 0, 0),
        "delete": (1, 0, 0),
    }
    assert all(one.seconds > 0 for one in counted.values())
    await storages.aclose()
    await storages.aclose()


async def test_a_tree_is_deleted_with_its_directories(tmp_path: Path) -> None:
    place = Storages().at(str(tmp_path))
    for name in ("job/a/x", "job/b", "other"):
        await place.child(name).write_bytes(b"")
    assert await place.child("job").delete_tree(page=1) == 2
    assert os.listdir(tmp_path) == ["other"]
    assert await place.child("job").delete_tree() == 0
