"""The class archive that all sessions under test share. `python -m tests.class_archives`, or `make servers`, makes it.

Without it every session of a run would start with more processor time, and every cluster would make an archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from minflinkd.taskmanager.child.class_archive import class_archive
from minflinkd.taskmanager.child.protocol import COMMAND, SessionConfig, write_config

CLASS_ARCHIVES = Path(__file__).parents[1] / ".servers" / "class-archives"
_TIMEOUT = 600  # seconds


def make(directory: Path) -> Path | None:
    """Make the archive in this directory unless it is there. Return its file; None if that failed, which is said."""
    with tempfile.TemporaryDirectory(prefix="minflinkd-archive-") as scratch:
        config = SessionConfig(
            name="class archive",
            slots=2,
            working_directory=scratch,
            log_directory=scratch,
            heap_bytes=512 << 20,
            class_archives=str(directory),
        )
        file = Path(scratch) / "session.json"
        write_config(config, file)
        archive = class_archive(config, os.environ)
        for _ in range(2):  # the first session leaves the jar of our classes
            if archive is None or archive.find() is not None:
                break
            command = (*COMMAND, "--archive", "--config", str(file))
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, cwd=scratch, check=False)
            if done.returncode != 0:
                print(f"no class archive was made; sessions start without it:\n{done.stderr[-2000:]}", file=sys.stderr)
                return None
    return None if archive is None else archive.find()


if __name__ == "__main__":
    made = make(CLASS_ARCHIVES)
    print(f"class archive of sessions: {made or 'none'}")
