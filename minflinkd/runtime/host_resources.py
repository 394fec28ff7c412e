"""What this host has: cores, memory, and the file system that state is kept on (R40)."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from minflinkd.runtime.resource_profile import ResourceProfile


def host_resources(directory: Path) -> ResourceProfile:
    """Return them, with the whole size of the file system on which `directory` is, or will be. Blocks.

    What cannot be found out is 0: not known.
    """
    existing = next((place for place in (directory, *directory.parents) if place.exists()), Path("/"))
    try:
        disk = psutil.disk_usage(str(existing)).total
    except OSError:
        disk = 0
    return ResourceProfile(cpu=float(os.cpu_count() or 0), memory=psutil.virtual_memory().total, disk=disk)
