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
from minflinkd.taskmanager.session.sinks.compaction.result import Answer, Asked
from minflinkd.taskmanager.session.spark.failures import hidden

log = structlog.get_logger(__name__)

COMMAND: Final = (sys.executable, "-m", "minflinkd.taskmanager.session.sinks.compaction")
LONGEST: Final = 3600.0  # seconds for one compaction
_SETTLING: Final = 60.0  # seconds after which a new attempt compacts for the first time, at the earliest
_ENDING: Final = 5.0  # seconds for one that is to end, before it is killed


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
        self._asked = Asked(sink, f"minflinkd.{job_id}.{vertex_id}")
        self._job_id, self._sink = job_id, vertex_id
        self._every = sink.compaction.every
        self._command, self._clock = command, clock
        self._due = clock() + min(self._every, _SETTLING)
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self.told = SinkCompactions()

    def committed(self) -> None:
        """The sink has committed: compact, if it is time. Returns at once."""
        if self._closed or self._clock() < self._due or self.is_running:
            return
        self._due = self._clock() + self._every
        self._thread = threading.Thread(target=self._compact, name=f"compaction of {self._sink}", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """End a compaction that runs. Returns at once: its end disturbs nobody."""
        self._closed = True
        if (process := self._process) is not None:
            process.terminate()

    def _compact(self) -> None:
        began = self._clock()
        try:
            answer = self._answer()
        except Exception as error:  # the next one may succeed
            answer = Answer(failure=str(error))
        answer = replace(answer, failure=without_credentials(hidden(answer.failure)))
        if not self._closed:
            self.told = _advanced(self.told, answer)
        told = {"job": self._job_id, "sink": self._sink, "seconds": round(self._clock() - began, 1)}
        if self._closed:
            log.info("a compaction was ended with its attempt", **told)
        elif answer.failure:
            log.warning("a table could not be compacted", **told, why=answer.failure)
        else:
            log.info("a table is compacted", **told, **msgspec.to_builtins(answer.joined), deleted=answer.deleted)

    def _answer(self) -> Answer:
        with subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            self._process = process
            killer = threading.Timer(LONGEST, process.kill)
            killer.daemon = True
            killer.start()
            try:
                return self._told(process)
            finally:
                self._process = None
                killer.cancel()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDING)
                process.kill()

    def _told(self, process: subprocess.Popen[bytes]) -> Answer:
        """Its input stays open: it ends when that is closed."""
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if self._closed:
            process.terminate()
        errors: list[bytes] = []
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        with suppress(BrokenPipeError):
            process.stdin.write(self._asked.line())
            process.stdin.flush()
        answer = process.stdout.read()
        if answer:
            return msgspec.json.decode(answer, type=Answer)
        reader.join(_ENDING)
        last = b"".join(errors).decode(errors="replace").strip().splitlines()[-1:]
        return Answer(failure=f"the compaction ended with {process.wait()}: {' '.join(last)}")


def _advanced(told: SinkCompactions, answer: Answer) -> SinkCompactions:
    """Return the figures after one more compaction. One that fails may have done a part."""
    return SinkCompactions(
        done=told.done + (not answer.failure),
        failed=told.failed + bool(answer.failure),
        files=told.files + answer.joined.files,
        into=told.into + answer.joined.into,
        deleted=told.deleted + answer.deleted,
        last_ms=round(time.time() * 1000),
        failure=answer.failure,
    )
