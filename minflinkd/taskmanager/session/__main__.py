"""Entry point of the session child: `python -m minflinkd.taskmanager.session --fd N --config FILE`.

With `--archive` instead of `--fd` it is a session without a supervisor, which makes a class archive and exits.

It lives exactly as long as its supervisor: the kernel kills it when its parent dies, and a closed socket ends it. The
JVM ends with the child, as its standard input is a pipe from here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import structlog

from minflinkd.rpc.connection import Connection
from minflinkd.rpc.messages import Notice
from minflinkd.rpc.network import Mailbox
from minflinkd.rpc.parties import Party
from minflinkd.rpc.peer import Peer
from minflinkd.runtime import crash_points
from minflinkd.runtime import log as logging
from minflinkd.runtime.errors import error_info
from minflinkd.runtime.private_files import as_started
from minflinkd.taskmanager.child.protocol import (
    SESSION,
    SUPERVISOR,
    JvmLost,
    SessionConfig,
    SessionFailed,
    SessionReady,
    read_config,
)
from minflinkd.taskmanager.session.code.parsing import parse_one_at_a_time

if TYPE_CHECKING:
    from minflinkd.taskmanager.session.child import SessionChild

log = structlog.get_logger(__name__)
_PR_SET_PDEATHSIG = 1
_JVM_POLL = 0.5  # seconds


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies."""
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


async def serve(fd: int, config: SessionConfig) -> None:
    """Serve the supervisor. Returns when the supervisor or the JVM is gone."""
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
    mailboxes: dict[str, Mailbox] = {}
    connection = Connection(
        reader, writer, local=mailboxes.get, name="supervisor", peer=Peer(frozenset({Party.SUPERVISOR}))
    )
    connection.start()

    def tell(notice: Notice) -> None:
        connection.tell(SUPERVISOR, notice)

    begun = asyncio.create_task(_begin(config, tell, mailboxes), name="begin")
    closed = asyncio.create_task(connection.wait_closed(), name="closed")
    await asyncio.wait([begun, closed], return_when=asyncio.FIRST_COMPLETED)
    if closed.done():
        return
    jvm_pid = await begun
    while jvm_pid is not None and not closed.done():
        await asyncio.wait([closed], timeout=_JVM_POLL)
        if not _lives(jvm_pid):
            tell(JvmLost(reason=f"the JVM (pid {jvm_pid}) is gone"))
            break
    await connection.aclose()


async def _begin(config: SessionConfig, tell: Callable[[Notice], None], mailboxes: dict[str, Mailbox]) -> int | None:
    """Build the session, report it to the supervisor, and return the JVM's pid; None if that failed."""
    try:
        child, jvm_pid, phases = await asyncio.to_thread(_build, config, tell)
    except Exception as error:
        log.exception("the session could not be built")
        tell(SessionFailed(error=error_info(error, with_traceback=True)))
        return None
    await child.start()
    mailboxes[SESSION] = child.mailbox
    tell(SessionReady(jvm_pid=jvm_pid, phases=phases))
    return jvm_pid


def _build(config: SessionConfig, tell: Callable[[Notice], None]) -> tuple[SessionChild, int, dict[str, float]]:
    began = time.monotonic()
    # Imported here and not at the top, because the time of importing pyspark is one of the phases.
    from minflinkd.taskmanager.session import reach, warmup
    from minflinkd.taskmanager.session.child import SessionChild
    from minflinkd.taskmanager.session.code.libraries import CodeCache
    from minflinkd.taskmanager.session.query.building import Engine
    from minflinkd.taskmanager.session.spark.callback import BatchCallback
    from minflinkd.taskmanager.session.spark.partitions import PartitionBook
    from minflinkd.taskmanager.session.spark.session import launch
    from minflinkd.taskmanager.session.state.stores import StateStores

    imported = time.monotonic()
    session = launch(config)
    engine = Engine(session, BatchCallback(session), CodeCache(session), StateStores(session), PartitionBook(session))
    launched = time.monotonic()
    phases = {"import": imported - began, "session": launched - imported}
    if config.on_cluster:
        reach.check_executors(session)
        phases["executors"] = time.monotonic() - launched
    if config.warm_up:
        phases |= warmup.warm_up(engine)
    return SessionChild(engine, tell=tell), session.jvm_pid, phases


def _lives(pid: int) -> bool:
    try:
        # The JVM is our own child: once dead it stays a zombie until we wait for it.
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def _archive(config: SessionConfig) -> NoReturn:
    """Make a class archive, at the lowest priority, and end the process."""
    with contextlib.suppress(OSError):  # a unit may not let its processes change their priority
        os.nice(19)
    logging.configure(json=True, stream=sys.stderr)
    from minflinkd.taskmanager.session.archiving import make_archive

    code = 1
    try:
        make_archive(config)
        code = 0
    except Exception:
        log.exception("no class archive was made")
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="minflinkd session child")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--fd", type=int, help="the socket of the supervisor")
    what.add_argument("--archive", action="store_true", help="make a class archive, and exit")
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args(argv)
    die_with_parent()
    if arguments.archive:
        _archive(read_config(arguments.config))
    as_started(os.environ)
    config = read_config(arguments.config)
    os.makedirs(config.working_directory, exist_ok=True)
    os.chdir(config.working_directory)
    parse_one_at_a_time()
    logging.configure(json=True, stream=sys.stderr)
    crash_points.announce()
    try:
        asyncio.run(serve(arguments.fd, config))
    finally:
        # Not sys.exit: threads of user code and of py4j could keep the process alive forever.
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
