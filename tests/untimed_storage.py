"""The local disk without time limits, for tests in virtual time, where hours pass while a thread works."""

from __future__ import annotations

from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.storage.registry import Storages
from minflinkd_local import LocalStorage


def untimed_storages() -> Storages:
    storages = Storages()
    storages.add(LocalStorage())
    return storages


def untimed_turn(what: str) -> StorageTurn:
    """Return a turn that is waited for as long as it takes: hours of virtual time may be a moment of the disk's."""
    return StorageTurn(what, patience=7 * 24 * 3600.0)
