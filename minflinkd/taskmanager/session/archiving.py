"""Makes a class archive: a session of its own, warmed up as any other, whose JVM writes the archive when it exits."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

import structlog

from minflinkd.taskmanager.child.class_archive import ClassArchive, class_archive
from minflinkd.taskmanager.child.protocol import SessionConfig
from minflinkd.taskmanager.session import warmup
from minflinkd.taskmanager.session.code.libraries import CodeCache
from minflinkd.taskmanager.session.query.building import Engine
from minflinkd.taskmanager.session.spark.callback import BatchCallback
from minflinkd.taskmanager.session.spark.partitions import PartitionBook
from minflinkd.taskmanager.session.spark.session import Session, launch
from minflinkd.taskmanager.session.state.stores import StateStores

WRITING = 120.0  # seconds that the JVM has to write the archive; it takes about 4

log = structlog.get_logger(__name__)


def make_archive(config: SessionConfig) -> bool:
    """Make the archive for sessions of this configuration. Blocks. Return False if it is not made.

    That is so if somebody else makes it, or if no session has left the jar of our classes yet: then this one does, and
    the next call makes the archive. Raises what starting a session raises.
    """
    archive = class_archive(config, os.environ)
    if archive is None:
        return False
    if not archive.jar.exists():
        launch(config)
        return False
    with archive.locked() as mine:
        if not mine or archive.find() is not None:
            return False
        made = _make(archive, config)
        archive.remove_unused(time.time())
    log.info("the class archive is made", file=str(made), bytes=made.stat().st_size)
    return True


def _make(archive: ClassArchive, config: SessionConfig) -> Path:
    new = archive.new()
    session = launch(config, archive_to=new)
    engine = Engine(session, BatchCallback(session), CodeCache(session), StateStores(session), PartitionBook(session))
    warmup.warm_up(engine)
    _end(session)
    return archive.put(new)


def _end(session: Session) -> None:
    """Let the JVM exit, and wait until it has. Raises TimeoutExpired."""
    jvm: subprocess.Popen[bytes] = session.gateway.proc
    with contextlib.suppress(Exception):  # the answer never comes: the connection ends with the JVM
        session.jvm.java.lang.System.exit(0)
    jvm.wait(WRITING)
