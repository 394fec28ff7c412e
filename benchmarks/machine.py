"""Describes the machine on which the figures were measured."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil


def kind() -> str:
    """Return what figures of two runs must have in common to be compared: processor, cores, memory."""
    memory = psutil.virtual_memory().total / (1 << 30)
    return f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


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
