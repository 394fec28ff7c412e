"""The local disk as `faulty://`, for processes under test: the file $FAULTY_DISK says what is wrong with it.

`install` makes it a backend of every process that has the directory on its PYTHONPATH, as a third party's package does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.interface import StorageFull, StorageUnavailable
from minflinkd_local import LocalStorage

EVERY_THIRD, SLOW, FULL, SOUND = "every third write fails", "a write takes 2 s", "full", "sound"
FULL_FOR_TASKS = "full for TaskManagers"  # as where each has a quota: the daemon goes on writing
DELETES_FAIL = "nothing can be deleted"
REPOSITORY = Path(__file__).parents[1]


class FaultyDisk(FaultyStorage):
    scheme = ("faulty",)
    capabilities = LocalStorage.capabilities

    def __init__(self, options: msgspec.Struct | None = None) -> None:
        super().__init__(LocalStorage())
        self.scheme = FaultyDisk.scheme

    async def _step(self, *, done: bool, write: bool = False) -> None:
        if write and not done:
            self.writes += 1
            match Path(os.environ["FAULTY_DISK"]).read_text():
                case "full":
                    raise StorageFull("no space left on the faulty disk")
                case "full for TaskManagers" if "minflinkd.taskmanager" in sys.orig_argv:
                    raise StorageFull("no space left on the faulty disk")
                case "a write takes 2 s":
                    await asyncio.sleep(2)
                case "every third write fails" if self.writes % 3 == 0:
                    raise StorageUnavailable("the faulty disk did not take a write")

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        if Path(os.environ["FAULTY_DISK"]).read_text() == DELETES_FAIL:
            raise StorageUnavailable("the faulty disk deletes nothing")
        await super().delete(paths, below=below)


def install(directory: Path) -> dict[str, str]:
    """Return the environment of a daemon that knows the scheme. Its TaskManagers inherit it."""
    info = directory / "faulty_disk-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-disk\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[minflinkd.storage]\nfaulty = tests.faulty_disk:FaultyDisk\n")
    control = directory / "control"
    control.write_text(SOUND)
    path = [str(directory), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "FAULTY_DISK": str(control), "PYTHONPATH": os.pathsep.join(filter(None, path))}
