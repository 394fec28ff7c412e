"""A file system that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, mebibytes: int) -> Iterator[Path]:
    """Mount one at the new directory. Skips the test if that is not allowed."""
    directory.mkdir()
    try:
        _mount(directory, mebibytes)
    except subprocess.CalledProcessError:
        pytest.skip("only root mounts a file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def resize(directory: Path, mebibytes: int) -> None:
    _mount(directory, mebibytes, "remount")


def _mount(directory: Path, mebibytes: int, *others: str) -> None:
    options = ",".join((f"size={mebibytes}m", *others))
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], capture_output=True, check=True)
