"""Has a table compacted from time to time, while its sink commits (K5)."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from minflinkd.jobgraph.model import Sink
from minflinkd.rpc.messages import SinkCompactions
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.runtime.secrets import without_credentials
from minflinkd.taskmanager.session.sinks.compaction.messages import Answer, Request
from minflinkd.taskmanager.session.spark.failures import hidden

log = structlog.get_logger(__name__)

COMMAND: Final = (sys.executable, "-m", "minflinkd.taskmanager.session.sinks.compaction")
LONGEST: Final = 3600.0  # seconds for one compaction
_SETTLING: Final = 60.0  # seconds after which a new attempt compacts for the first time, at the earliest
_EXPIRING: Final = 0.1  # of `expire`: how often old versions are looked for, which means reading about all of them
_ENDING: Final = 5.0  # seconds for a process that is to end, before it is killed


class Compactor:
    """Starts a process for each compaction, one at a time. `committed` and `close` are called by one thread."""

    def __init__(
        self,
        sink: Sink,
        job_id: JobId,
        vertex_id: VertexId,
        *,
        command: Sequence[str] = COMMAND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert sink.compaction is not None
        self._request = Request(sink, f"minflinkd.{job_id}.{vertex_id}")
        self._job_id, self._sink = job_id, vertex_id
        self._every, self._expire = sink.compaction.every, sink.compaction.expire
        self._command, self._clock = command, clock
        self._due = clock() + min(self._every, _SETTLING)
        self._expiry_due = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self.figures = SinkCompactions()

    def committed(self) -> None:
        """The sink has committed: compact, if it is time. Returns at once."""
        now = self._clock()
        if self._closed or now < self._due or self.is_running:
            return
        self._due = now + self._every
        expires = self._expire is not None and now >= self._expiry_due
        if expires and self._expire is not None:
            self._expiry_due = now + _EXPIRING * self._expire
        request = replace(self._request, expires=expires)
        self._thread = threading.Thread(
            target=self._compact, args=(request,), name=f"compaction of {self._sink}", daemon=True
        )
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """End a compaction that runs. Returns at once; the process has a few seconds to clean up."""
        self._closed = True
        if (process := self._process) is not None:
            _end(process)

    def _compact(self, request: Request) -> None:
        began = self._clock()
        try:
            answer = self._answer(request)
        except Exception as error:  # the next one may succeed
            answer = Answer(failure=str(error))
        answer = replace(answer, failure=without_credentials(hidden(answer.failure)))
        fields = {"job": self._job_id, "sink": self._sink, "seconds": round(self._clock() - began, 1)}
        fields |= msgspec.to_builtins(answer.joined) | {"deleted": answer.deleted}
        if self._closed:
            log.info("a compaction was ended with its attempt", **fields)
            return
        self.figures = _advanced(self.figures, answer)
        if answer.failure:
            log.warning("a table could not be compacted", **fields, why=answer.failure)
        else:
            log.info("a table was looked at for small files", **fields)

    def _answer(self, request: Request) -> Answer:
        """Have a process carry out a request. It ends with this call."""
        with subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            self._process = process
            killer = _later(LONGEST, process)
            try:
                if self._closed:  # before there was a process to end
                    _end(process)
                return _ask(process, request)
            finally:
                self._process = None
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING)
                process.kill()
                killer.cancel()


def _ask(process: subprocess.Popen[bytes], request: Request) -> Answer:
    """Send a request, and wait for the answer. The input stays open: the process ends when that is closed."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors: list[bytes] = []
    reader = threading.Thread(target=lambda: errors.append(process.stderr.read()), daemon=True)  # type: ignore[union-attr]
    reader.start()
    with suppress(BrokenPipeError):
        process.stdin.write(request.line())
        process.stdin.flush()
    answer = process.stdout.read()
    if answer:
        return msgspec.json.decode(answer, type=Answer)
    reader.join(_ENDING)
    last = b"".join(errors).decode(errors="replace").strip().splitlines()[-1:]
    return Answer(failure=f"the compaction ended with {process.wait()}: {' '.join(last)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end. It is killed if it does not: a call of a library may take long."""
    process.terminate()
    _later(_ENDING, process)


def _later(seconds: float, process: subprocess.Popen[bytes]) -> threading.Timer:
    """Kill a process after some time, unless it has ended by then."""
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    return timer


def _advanced(figures: SinkCompactions, answer: Answer) -> SinkCompactions:
    """Return the figures after one more compaction. One that fails may have done a part."""
    return SinkCompactions(
        done=figures.done + (not answer.failure),
        failed=figures.failed + bool(answer.failure),
        files=figures.files + answer.joined.files,
        into=figures.into + answer.joined.into,
        overtaken=figures.overtaken + answer.joined.overtaken,
        deleted=figures.deleted + answer.deleted,
        last_ms=round(time.time() * 1000),
        failure=answer.failure,
    )
