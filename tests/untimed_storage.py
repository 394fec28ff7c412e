"""The local disk without time limits, for tests in virtual time, where hours pass while a thread works."""

from __future__ import annotations

from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage


def untimed_storages() -> Storages:
    storages = Storages()
    storages.add(LocalStorage())
    return storages
