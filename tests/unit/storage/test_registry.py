import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from minflinkd.storage.interface import InvalidPath, ObjectNotFound
from minflinkd.storage.location import relative_path
from minflinkd.storage.options import InvalidStorageOption
from minflinkd.storage.registry import GROUP, Storages, UnknownScheme, parse_uri
from minflinkd.storage.resilient import ResilientStorage


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
        ("hdfs://[::1]:8020/a:b@c", ("hdfs", "[::1]:8020/a:b@c")),
        ("abfs://container@account.dfs.core.windows.net/a", ("abfs", "container@account.dfs.core.windows.net/a")),
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
    with pytest.raises(UnknownScheme, match=r"there are: .*file"):
        Storages().at("gopher://x/y")


def test_a_scheme_that_fsspec_knows_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """S1"""
    monkeypatch.setitem(sys.modules, "webdav4", None)  # type: ignore[arg-type]  # as if it was not installed
    with pytest.raises(UnknownScheme, match=r"no storage backend for webdav://.*pip install webdav4\[fsspec\]"):
        Storages().at("webdav://x/y")


@pytest.mark.parametrize(
    ("scheme", "target", "said"),
    [
        ("s3", "no_such_sdk:S3Storage", r"no_such_sdk.*minflinkd\[s3\].* \(in a checkout: pip install '\.\[s3\]'\)"),
        ("abfs", "no_such_sdk.aio:X", r"pip install 'minflinkd\[azure\]' \(in a checkout: pip install '\.\[azure\]'\)"),
        ("other", "no_such_sdk:X", r"other://.*which needs no_such_sdk"),
        ("file", "minflinkd.storage.interface:Storage", r"is no storage backend for file://"),
        ("file", "minflinkd.storage.interface:Entry", r"is no storage backend for file://"),
    ],
)
def test_a_backend_that_cannot_be_loaded_says_what_is_missing(scheme: str, target: str, said: str) -> None:
    """S1"""
    storages = Storages()
    storages._plugins[scheme] = EntryPoint(scheme, target, GROUP)
    with pytest.raises(UnknownScheme, match=said):
        storages.at(f"{scheme}:///x")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("s3a.endpoint-url", r"storage\.s3a.*those of storage\.s3\."),
        ("abfss.account-name", r"those of storage\.abfs\."),
        ("az.account-name", r"those of storage\.abfs\."),
        ("s33.retries", r"storage\.s33.*there are: .*s3"),
        ("s3.no-such", r"storage\.s3\.no-such"),
    ],
)
def test_options_that_nobody_would_read_are_refused_at_the_start(option: str, said: str) -> None:
    """S7"""
    with pytest.raises(InvalidStorageOption, match=said):
        Storages({option: "1"})


STUB = """
from minflinkd_local import LocalStorage
class Stub(LocalStorage):
    scheme = ("stub",)
"""


def test_the_backends_that_have_options_are_imported_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So their first use does not hold up the event loop."""
    (tmp_path / "stub_of_a_backend.py").write_text(STUB)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("stub", "stub_of_a_backend:Stub", GROUP)
    monkeypatch.setattr("minflinkd.storage.registry.entry_points", lambda group: [point])
    Storages()
    assert "stub_of_a_backend" not in sys.modules
    Storages({"stub.retries": "1"})
    assert sys.modules.pop("stub_of_a_backend").Stub.scheme == ("stub",)


@pytest.mark.parametrize(
    "uri",
    ["s3://KEY:s3cr3tvalue@bucket/x", "s3://KEY:s3cr3tvalue/more@b/x", "gs:me:s3cr3tvalue@b/x", "s3://K:s3cr3tvalue@"],
)
def test_credentials_in_a_uri_are_refused_and_not_repeated(uri: str) -> None:
    """S4"""
    with pytest.raises(InvalidPath) as caught:
        parse_uri(uri)
    assert "s3cr3tvalue" not in str(caught.value)
    assert "KEY" not in str(caught.value)


async def test_one_backend_under_two_names_is_counted_once() -> None:
    """S6"""
    storages = Storages()
    storages.at("s3a://bucket/x")
    assert list(storages.statistics()) == ["s3"]
    assert storages.at("s3://bucket/x").storage is storages.at("s3a://bucket/x").storage
    await storages.aclose()


@pytest.mark.parametrize(
    ("option", "value"),
    [("no-such-option", "1"), ("parallelism", "0"), ("request-timeout", "-1"), ("retries", "many"), ("pause", "x")],
)
def test_a_wrong_option_is_refused_when_its_backend_is_first_used(option: str, value: str) -> None:
    """S7"""
    with pytest.raises(InvalidStorageOption, match=r"storage\.file"):
        Storages({f"file.{option}": value}).at("/x")


async def test_a_backend_of_an_entry_point_is_retried_and_bounded(tmp_path: Path) -> None:
    """The options of its scheme apply (S4, S7)."""
    storage = Storages({"file.retries": "0", "file.deadline": "7", "s3.retries": "9"}).at("/x").storage
    assert isinstance(storage, ResilientStorage)
    assert (storage._requests.options.retries, storage._requests.options.deadline) == (0, 7.0)


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
        "stat": (3, 0, 0),  # one for the read, so that the end of the object is known
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
