"""Describes the machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version

import psutil


def description() -> str:
    """Return one line: cores, memory, load, versions, the time."""
    memory = psutil.virtual_memory().total / (1 << 30)
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.split('"')
    versions = [
        f"Python {platform.python_version()}",
        f"Java {java[1] if len(java) > 1 else '?'}",
        *(f"{name} {version(name)}" for name in ("pyspark", "minflinkd")),
    ]
    load = os.getloadavg()[0]
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, load {load:.1f} at the start; {', '.join(versions)}; {now}"
