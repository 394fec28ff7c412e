"""The checkpoints in a job's directory on a local disk, read with nothing but the format in docs/checkpoints.md."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash


@dataclass(frozen=True)
class StoredCheckpoints:
    directory: Path

    def latest(self) -> Path:
        """Return the directory of the latest checkpoint."""
        return max((path.parent for path in self._metadata()), key=lambda path: int(path.name.removeprefix("chk-")))

    def named(self) -> set[str]:
        """Return the physical files that any checkpoint refers to."""
        return {handle["file"] for metadata in self._metadata().values() for handle in _handles(metadata)}

    def present(self) -> set[str]:
        """Return the physical files that exist."""
        return {path.name for path in self.directory.glob("*.seg")}

    def damaged(self) -> list[str]:
        """Return the segments of existing checkpoints that a restore could not read: they are not what was written."""
        found = []
        for path, metadata in self._metadata().items():
            wrong = [f"{path.parent.name}: {handle}" for handle in _handles(metadata) if not self._whole(handle)]
            if path.exists():  # otherwise it was deleted meanwhile, before its files
                found += wrong
        return found

    def _metadata(self) -> dict[Path, Any]:
        found = {}
        for path in sorted(self.directory.glob("chk-*/_metadata")):
            with contextlib.suppress(FileNotFoundError):
                found[path] = json.loads(path.read_bytes().partition(b"\n")[2])
        return found

    def _whole(self, handle: dict[str, Any]) -> bool:
        try:
            with (self.directory / handle["file"]).open("rb") as file:
                file.seek(handle["offset"])
                data = file.read(handle["length"])
        except FileNotFoundError:
            return False
        return xxhash.xxh3_128_hexdigest(data) == handle["checksum"]


def _handles(metadata: Any) -> Iterator[dict[str, Any]]:
    return (file["handle"] for task in metadata["tasks"] for file in task["files"])
