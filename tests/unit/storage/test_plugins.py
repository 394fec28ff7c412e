"""Third parties' backends in the registry: sound, unfinished, with the same scheme, or failing to close."""

import os
import re
import sys
import traceback
import types
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import pytest

from minflinkd.cli.plugins import _plugin as listed
from minflinkd.storage import registry
from minflinkd.storage.interface import (
    Capabilities,
    Entry,
    ObjectNotFound,
    Storage,
    StorageError,
    StorageUnavailable,
    Writer,
)
from minflinkd.storage.registry import GROUP, Storages, UnknownScheme

PASSWORD = "hunter" + "22" * 2


class Plugin(Storage):
    scheme: tuple[str, ...] = ("plugin", "file")  # the second scheme belongs to another backend
    capabilities = Capabilities()

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        raise ObjectNotFound(path)
        yield b""

    async def create(self, path: str) -> Writer:
        raise NotImplementedError

    async def create_exclusive(self, path: str, data: bytes) -> None:
        raise NotImplementedError

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        return
        yield Entry(prefix, 0, 0)

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        return

    async def stat(self, path: str) -> Entry:
        raise ObjectNotFound(path)

    async def rename(self, source: str, target: str) -> None:
        raise ObjectNotFound(source)


class TextForScheme(Plugin):
    scheme = "plugin"  # type: ignore[assignment] # the mistake


class Unfinished(Storage):
    scheme = ("plugin",)
    capabilities = Capabilities()


class WithoutCapabilities(Plugin):
    capabilities = None  # type: ignore[assignment] # the mistake


class OptionsOfNoStruct(Plugin):
    options_type = dict  # type: ignore[assignment] # the mistake


class NotMade(Plugin):
    def __init__(self, options: msgspec.Struct | None = None) -> None:
        raise ValueError(f"password={PASSWORD} is wrong")


class Closing(Plugin):
    scheme = ("good",)
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


class FailsToClose(Plugin):
    scheme = ("bad",)

    async def aclose(self) -> None:
        raise RuntimeError("does not close")


def plugged(monkeypatch: pytest.MonkeyPatch, name: str) -> EntryPoint:
    """Return an entry point that names a class of this file."""
    module = types.ModuleType("plugin_of_a_test")
    vars(module).update(globals())
    monkeypatch.setitem(sys.modules, "plugin_of_a_test", module)
    return EntryPoint("plugin", f"plugin_of_a_test:{name}", GROUP)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("TextForScheme", "not a tuple"),
        ("Unfinished", "does not implement create, .*stat"),
        ("WithoutCapabilities", "capabilities"),
        ("OptionsOfNoStruct", "options_type"),
        ("Missing", "cannot be loaded: AttributeError"),
    ],
)
def test_an_unfinished_plugin_is_refused_and_listed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    """An unfinished plugin disturbs neither the daemon nor `minflinkd plugins` (S1)."""
    storages = Storages()
    storages._plugins["plugin"] = point = plugged(monkeypatch, name)
    with pytest.raises(UnknownScheme, match=said):
        storages.at("plugin://x/y")
    assert re.search(said, listed(point).problem)


def test_a_plugin_that_cannot_be_made_says_so_without_a_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4"""
    storages = Storages()
    storages._plugins["plugin"] = plugged(monkeypatch, "NotMade")
    with pytest.raises(StorageError, match=r"plugin://.*ValueError") as caught:
        storages.at("plugin://x/y")
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


async def test_a_plugin_takes_no_scheme_that_is_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    storages = Storages()
    storages._plugins["plugin"] = plugged(monkeypatch, "Plugin")
    storages.at("plugin://x/y")
    assert storages.at("/x").storage.scheme == ("file",)


def test_of_two_packages_for_one_scheme_none_is_taken_unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("file", target, GROUP) for target in ("minflinkd_local:LocalStorage", "other:Storage")]
    monkeypatch.setattr(registry, "entry_points", lambda **_: points)
    with pytest.raises(UnknownScheme, match=r"several packages bring file://: minflinkd_local.*, other"):
        Storages().at("/x")


async def test_every_backend_is_closed_and_none_is_opened_again(tmp_path: Path) -> None:
    storages, closing = Storages(), Closing()
    storages.add(FailsToClose())
    storages.add(closing)
    place = storages.at(str(tmp_path))
    await place.child("x").write_bytes(b"1")
    with pytest.raises(RuntimeError, match="does not close"):
        await storages.aclose()
    assert closing.closed == 1
    for use in (place.child("x").stat(), place.child("x").read_bytes(), place.child("y").write_bytes(b"2")):
        with pytest.raises(StorageUnavailable, match="closed"):
            await use
    with pytest.raises(StorageUnavailable, match="closed"):
        storages.at(str(tmp_path))
    await storages.aclose()
    assert os.listdir(tmp_path) == ["x"]
