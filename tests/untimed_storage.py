"""The local disk for tests in virtual time, where hours pass while a thread works: nothing of it has a time limit."""

from __future__ import annotations

from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage


def untimed_storages() -> Storages:
    storages = Storages()
    storages.add(LocalStorage())
    return storages
