"""Metrics of a TaskManager's requests to storages. Each request is counted where it is made (S6)."""

from __future__ import annotations

from collections.abc import Mapping

from minflinkd.storage.recording import StorageStatistics


def storage_metrics(statistics: Mapping[str, StorageStatistics]) -> dict[str, float]:
    """Return `storage.{scheme}.{request}.requests`, `.bytes`, `.seconds` for each kind of request made so far."""
    return {
        f"storage.{scheme}.{kind}.{name}": float(getattr(made, name))
        for scheme, kinds in statistics.items()
        for kind, made in kinds.items()
        for name in ("requests", "bytes", "seconds")
    }
