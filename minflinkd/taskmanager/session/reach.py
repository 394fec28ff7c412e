"""Checks whether the executors of a Spark cluster reach the directory with running state and snapshots (C11)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.taskmanager.placing import link_or_copy
from minflinkd.taskmanager.session.spark.session import Session


class StateDirectoryUnreachable(MinflinkError):
    """An executor has another directory at that path, or none, or the files that it writes cannot be used here."""

    code = "state-directory-unreachable"
    consequence = Consequence.FATAL


def check_executors(session: Session) -> None:
    """Let each executor find one file and write another, which is then linked or copied here, as for a snapshot.

    Blocks until executors are there. Raises StateDirectoryUnreachable.
    """
    place = Path(session.state_directory) / f"reach-{uuid4().hex[:8]}"
    place.mkdir(parents=True)
    try:
        (place / "token").touch()
        count = session.config.slots
        answers = session.spark.sparkContext.parallelize(range(count), count).map(_visit(str(place))).collect()
        for host, problem, name in answers:
            if problem is None:
                problem = _link(place, name)
            if problem is not None:
                raise StateDirectoryUnreachable(
                    f"the executor on {host} does not share {session.state_directory} with the TaskManager: {problem}",
                    hint="set taskmanager.state.local.root-dir to a directory that all machines of the Spark cluster "
                    "have at the same path, and run executors as the TaskManager's user",
                )
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _visit(place: str) -> Callable[[int], tuple[str, str | None, str]]:
    def visit(number: int) -> tuple[str, str | None, str]:
        # A nested function is pickled by value, with its imports inside: minflinkd need not be installed on executors.
        import os
        import socket

        name = f"{socket.gethostname()}-{os.getpid()}-{number}"
        try:
            os.stat(os.path.join(place, "token"))
            with open(os.path.join(place, name), "w"):
                pass
        except OSError as error:
            return socket.gethostname(), str(error), name
        return socket.gethostname(), None, name

    return visit


def _link(place: Path, name: str) -> str | None:
    try:
        link_or_copy(place / name, place / f"{name}.link")
        if (place / name).stat().st_uid != place.stat().st_uid:
            return "its files belong to another user"  # we could not remove files from that user's directories
    except OSError as error:
        return str(error)
    return None
