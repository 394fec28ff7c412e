"""No restore may need what an earlier attempt has left: it may begin on another host.

On one host the directory of a dead attempt is still there for a while, and whatever still reads it goes unseen. While
the guard is up, an attempt that starts takes the directories of the earlier attempts of its task away first, in all
TaskManagers that were started meanwhile; so a restore that reads them fails. One that goes on in the directory of the
version before it, as it may in the same session (`session/restore/continuation.py`), takes nothing away.

`sitecustomize.py` does it, in the session children; what is here puts it there and looks at what is left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.attempt_guard.sitecustomize import RECORDS, take_away

__all__ = ["attempts_of", "guarding", "take_away_all"]

_PATH = "PYTHONPATH"


@contextmanager
def guarding() -> Iterator[None]:
    """For processes that are started in the block, and those that these start. Within itself it changes nothing."""
    if RECORDS in os.environ:
        yield
        return
    before = os.environ.get(_PATH)
    with TemporaryDirectory(prefix="attempts-", ignore_cleanup_errors=True) as records:
        os.environ[RECORDS] = records
        os.environ[_PATH] = os.pathsep.join(filter(None, (str(Path(__file__).parent), before)))
        try:
            yield
        finally:
            del os.environ[RECORDS]
            if before is None:
                del os.environ[_PATH]
            else:
                os.environ[_PATH] = before


def attempts_of(job_id: str) -> dict[str, Path]:
    """By id, the directories of the job's attempts that were not taken away."""
    return {record.name: Path(record.read_text()) for record in Path(os.environ[RECORDS], job_id).glob("*/*")}


def take_away_all(job_id: str) -> None:
    """Before the state of a job that has ended is used by another one, which has no attempts in common with it."""
    for task in Path(os.environ[RECORDS], job_id).glob("*"):
        take_away(task, but="")
