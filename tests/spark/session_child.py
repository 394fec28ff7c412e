"""A real session child, started and addressed as the supervisor does it; and short forms of what it is given."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import psutil

from minflinkd.jobgraph.model import (
    Checkpointing,
    Input,
    OutputMode,
    RuntimeMode,
    Sink,
    Source,
    Task,
    Vertex,
    Watermark,
)
from minflinkd.rpc.connection import Connection
from minflinkd.rpc.messages import JobContext, Notice, Request
from minflinkd.rpc.network import Mailbox
from minflinkd.rpc.parties import Party
from minflinkd.rpc.peer import Peer
from minflinkd.runtime.ids import AttemptId, JobId, TaskId, VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.class_archives import CLASS_ARCHIVES
from tests.cluster import lives
from tests.waiting import until

R = TypeVar("R")
EVENTS = "key STRING, time TIMESTAMP, value LONG"


class Child:
    """The other end of one session child, and a place for its attempts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.notices: list[Notice] = []
        self.changed = asyncio.Event()
        self.ready: p.SessionReady | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._connection: Connection | None = None

    @property
    def printed(self) -> Path:
        """The file with its standard output."""
        return self.directory / "stdout"

    @property
    def secrets(self) -> Path:
        """The directory of the secrets that jobs name."""
        return self.directory / "secrets"

    async def start(
        self, conf: dict[str, str], *, warm_up: bool = False, class_archives: str = str(CLASS_ARCHIVES)
    ) -> None:
        config = self.directory / "session.json"
        p.write_config(
            p.SessionConfig(
                name="tm-test",
                slots=2,
                working_directory=str(self.directory / "work"),
                log_directory=str(self.directory / "log"),
                conf=conf,
                warm_up=warm_up,
                class_archives=class_archives,
                secrets_directory=str(self.secrets),
            ),
            config,
        )
        ours, theirs = socket.socketpair()
        with self.printed.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "minflinkd.taskmanager.session"),
                *("--fd", str(theirs.fileno()), "--config", str(config)),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
            )
        theirs.close()
        mailbox = Mailbox(p.SUPERVISOR)
        kinds = (p.SessionReady, p.SessionFailed, p.TaskFailed, p.BatchFinished, p.InputEnded, p.JvmLost)
        for kind in kinds:
            mailbox.on_notice(kind, self._on_notice)
        reader, writer = await asyncio.open_connection(sock=ours)
        self._connection = Connection(
            reader, writer, local=lambda _: mailbox, name="child", peer=Peer(frozenset({Party.SESSION_CHILD}))
        )
        self._connection.start()
        self.ready = await self.notice(p.SessionReady, lambda _: True)

    async def _on_notice(self, notice: Notice) -> None:
        self.notices.append(notice)
        self.changed.set()

    async def notice(self, kind: type[Any], wanted: Callable[[Any], bool], timeout: float = 360.0) -> Any:
        """Return the first notice of this kind that fits, from the past or to come. A failed session ends the wait."""
        async with asyncio.timeout(timeout):
            while True:
                for notice in self.notices:
                    if isinstance(notice, kind) and wanted(notice):
                        return notice
                    assert not isinstance(notice, p.SessionFailed), notice.error
                self.changed.clear()
                await self.changed.wait()

    async def ask(self, request: Request[R], timeout: float = 180.0) -> R:
        assert self._connection is not None
        return await self._connection.ask(p.SESSION, request, timeout=timeout)

    async def run(self, job: JobContext, task: Task, **fields: Any) -> AttemptId:
        attempt_id = AttemptId(uuid4().hex)
        directory = fields.pop("directory", None) or self.fresh_directory()
        await self.ask(p.RunTask(job=job, task=task, attempt_id=attempt_id, directory=str(directory), **fields))
        return attempt_id

    def fresh_directory(self) -> Path:
        directory = self.directory / "attempts" / uuid4().hex
        directory.mkdir(parents=True)
        return directory

    async def stop(self, attempt_id: AttemptId) -> None:
        """Stop the attempt, until nothing of it is left in the session."""
        assert (await self.ask(p.StopTask(attempt_id=attempt_id))).ended
        assert (await self.ask(p.UnloadTask(attempt_id=attempt_id))).unloaded

    async def batches(self, attempt_id: AttemptId, batch_id: int) -> p.BatchFinished:
        """Wait until the attempt has finished this micro-batch. Fail if the attempt fails."""

        def fits(notice: Any) -> bool:
            if isinstance(notice, p.TaskFailed):
                if notice.attempt_id == attempt_id:
                    raise AssertionError(notice.error)
                return False
            return bool(notice.attempt_id == attempt_id and notice.metrics.batch_id >= batch_id)

        found = await self.notice((p.BatchFinished, p.TaskFailed), fits)  # type: ignore[arg-type]
        assert isinstance(found, p.BatchFinished)
        return found

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()
        if self._process is not None:
            async with asyncio.timeout(90):
                await self._process.wait()
        if self.ready is not None:
            await ends(self.ready.jvm_pid)  # the JVM does not outlive its child

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


async def ends(pid: int) -> None:
    """Wait until the process has ended. A zombie has: it does not matter here who reaps it."""
    await until(lambda: not _lives(pid), f"the end of process {pid}")


def _lives(pid: int) -> bool:
    try:
        return lives(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def job(name: str = "job", *, mode: RuntimeMode = RuntimeMode.STREAMING, **fields: Any) -> JobContext:
    values: dict[str, Any] = {"job_id": JobId(uuid4().hex), "params": {}}
    return JobContext(
        **(values | fields),
        name=name,
        mode=mode,
        checkpointing=Checkpointing(),
        checkpoint_root="file:///nowhere",
    )


def inputs(*ids: str) -> tuple[Input, ...]:
    return tuple(Input(id=VertexId(name)) for name in ids)


def rate(rows: int = 1000) -> Vertex:
    """A source that never ends: value 0, 1, 2, ...; the timestamp advances by one second for each micro-batch."""
    return source("numbers", "rate-micro-batch", rowsPerBatch=str(rows), numPartitions="2")


def source(name: str, kind: str, **options: str) -> Vertex:
    return Vertex(id=VertexId(name), source=Source(format=kind, options=options))


def events(path: Path, *, column: str = "time", **options: str) -> Vertex:
    """JSON files below a directory, with a watermark that allows no lateness."""
    files = Source(format="json", path=str(path), schema=EVENTS, options=options)
    return Vertex(id=VertexId("events"), source=files, watermark=Watermark(column=column, delay="0 seconds"))


def sql(name: str, text: str, *sources: str) -> Vertex:
    return Vertex(id=VertexId(name), inputs=inputs(*sources), sql=text)


def python(name: str, reference: str, *sources: str) -> Vertex:
    return Vertex(id=VertexId(name), inputs=inputs(*sources), python=reference)


def parquet(path: Path, source: str, **fields: Any) -> Vertex:
    return Vertex(id=VertexId("out"), inputs=inputs(source), sink=Sink(format="parquet", path=str(path), **fields))


def call(reference: str, source: str, mode: OutputMode | None = None) -> Vertex:
    return Vertex(id=VertexId("out"), inputs=inputs(source), sink=Sink(python=reference), output_mode=mode)


def task(*vertices: Vertex, parallelism: int = 2) -> Task:
    return Task(id=TaskId(vertices[0].id), vertices=vertices, parallelism=parallelism)
