"""One shape on a cluster: submitted, disturbed, fed, and followed to its end. Then its sinks are compared."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from minflinkd.cli.submission import RefusedJob, restart
from minflinkd.rest.schemas import HotRestartInfo, JobInfo
from minflinkd.runtime.errors import MinflinkError
from tests.cluster import Cluster, write_job
from tests.servers.kafka import Tansu
from tests.shapes import refusals
from tests.shapes.job_files import lay_out
from tests.shapes.shape import Shape
from tests.shapes.sinks import differences, leftovers
from tests.shapes.sources import RATE_BATCHES, produce, write_file
from tests.waiting import WaitedInVain, until

T = TypeVar("T")

ENDED = ("FINISHED", "FAILED", "CANCELED")
LONGEST = 150.0  # seconds for each thing that a job has to do next
PAUSE = 0.1
DRAINS = 3  # tries
STOPS = 8  # tries
HOT_RESTARTS = 4  # tries
EXPECTED = (  # failures: those that a shape asks for, and Spark's fixed timeout for Python workers on a busy machine
    "raised once, on purpose",
    "Timed out while waiting for the Python worker to connect back",
)
NOT_YET = ("no-session", "job-not-running")  # codes of refusals while something is brought up again
TIME_HAS_ENDED = "time has ended for the state of"  # a bounded job was stopped when a part of it had ended
IDLE = 4.0  # seconds
PATIENCE = 4  # times LONGEST, for a job that makes progress
LOOK = 2.0  # seconds between two checks for failures


@dataclass
class Verdict:
    """`kind`: exact, refused, or what is wrong, in two words."""

    shape: Shape
    kind: str
    why: str = ""
    took: float = 0.0
    story: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.kind in ("exact", "refused")


class Wrong(Exception):
    """Something that a shape must not do."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(f"{kind}: {why}")
        self.kind = kind
        self.why = why


class Play:
    """`first` plays until the job has ended or was stopped with a savepoint. `second` continues from it elsewhere."""

    def __init__(self, shape: Shape, base: Path, longest: float = LONGEST, broker: Tansu | None = None) -> None:
        self.shape = shape
        self.base = base
        self.job_id = ""
        self.savepoint = ""
        self.written = dict.fromkeys(shape.sources, 0)
        self.began = 0.0
        self.story: list[str] = []
        self.over: Verdict | None = None
        self._longest = longest
        self._broker = broker
        self._cluster: Cluster | None = None
        self.waits = ""  # the kill that it waits for
        self.rests = False  # it is over, or was stopped for its second part
        self.struck = asyncio.Event()

    async def first(self, cluster: Cluster) -> Verdict | None:
        """Return None if there is a second part."""
        try:
            return await self._judged(self._first(cluster))
        finally:
            self.rests = True

    async def second(self, cluster: Cluster) -> Verdict:
        verdict = await self._judged(self._second(cluster))
        assert verdict is not None
        return verdict

    def tell(self, what: str) -> None:
        self.story.append(f"{time.strftime('%H:%M:%S')} {what}")

    async def _judged(self, playing: Awaitable[Verdict | None]) -> Verdict | None:
        began = time.monotonic()
        try:
            verdict = await playing
        except Wrong as error:
            verdict = Verdict(self.shape, error.kind, error.why)
        except Exception as error:
            traceback.print_exc()
            verdict = Verdict(self.shape, "not played", f"{type(error).__name__}: {error}")
        self.began += time.monotonic() - began
        if verdict is not None:
            verdict.took, verdict.story = self.began, self.story
            self.over = verdict
            if self._cluster is not None and not verdict.good and self.job_id:
                with contextlib.suppress(MinflinkError):
                    await self._cluster.client.cancel(self.job_id)
        return verdict

    # --- the two parts ---

    async def _first(self, cluster: Cluster) -> Verdict | None:
        self._cluster = cluster
        for vertex, source in self.shape.sources.items():
            if source.format == "kafka" and self._broker is not None:
                await self._broker.create_topic(f"{self.base.name}-{vertex}", 1)
        await asyncio.to_thread(self._prepare)
        try:
            await self._submit(version=1)
        except RefusedJob as error:
            return self._refusal("\n".join(error.lines()), [f.problem for f in error.faults])
        if self.shape.refused and not self.shape.may_be_refused:
            raise Wrong("accepted", f"it should have been refused: {self.shape.refused}")
        for what in self.shape.done:
            if what in ("hot restart", "rescale"):
                await self._await_progress()
                await self._hot_restart(rescale=what == "rescale")
            elif what in ("savepoint", "savepoint of all"):
                await self._await_progress()
                if what == "savepoint of all":
                    await self._await_idle()
                if await self._stop():
                    return None
            elif what == "raise":
                await self._await_progress()
                await self._feed_half()
            else:  # a kill: the campaign kills for all jobs at the same time
                await self._await_progress()
                self.waits = what
                await self.struck.wait()
                self.struck.clear()
                self.tell(f"after: {what}")
                await self._feed_half()
        return await self._finish()

    async def _second(self, cluster: Cluster) -> Verdict:
        """Start from the savepoint, which was moved in the meantime."""
        self._cluster = cluster
        moved = self.base / "moved"
        await asyncio.to_thread(shutil.move, self.savepoint.removeprefix("file://"), moved)
        await asyncio.to_thread(self._feed)
        try:
            # With more partitions than the savepoint has, so Spark has to rewrite the state.
            more = {"max-parallelism": self.shape.max_parallelism + 1} if self.shape.max_parallelism else {}
            await self._submit(version=2, restore={"path": str(moved)}, mode="batch", **more)
        except RefusedJob as error:
            told = "\n".join(error.lines())
            if TIME_HAS_ENDED not in told or self.shape.arriving:
                raise Wrong("refused without need", told) from error
            return Verdict(self.shape, "refused", "its savepoint is from after the end of time")
        return await self._finish(bounded=True)

    async def _finish(self, *, bounded: bool = False) -> Verdict:
        if self.shape.arriving and not bounded:
            await self._drain()
        job = await self._until("the end", self._ended)
        if job.state != "FINISHED":
            raise Wrong("failed", await self._failure())
        await self._check_failures()
        return await asyncio.to_thread(self._compared)

    # --- input ---

    def _prepare(self) -> None:
        lay_out(self.shape, self.base)
        for vertex, source in self.shape.sources.items():
            some = (source.files + 1) // 2 if self._in_parts else source.files
            self._write(vertex, some)

    @property
    def _in_parts(self) -> bool:
        """Whether part of the input is kept back.

        A bounded job has read all of its input when it ends. With "savepoint of all", no input may come after the
        savepoint.
        """
        return self.shape.arriving and "savepoint of all" not in self.shape.done

    def _write(self, vertex: str, count: int) -> None:
        source = self.shape.sources[vertex]
        for number in range(self.written[vertex], count):
            if source.format == "kafka":
                assert self._broker is not None
                produce(source, number, f"{self.base.name}-{vertex}", self._broker)
            elif source.format != "rate":
                write_file(self.base / "in" / vertex, source, number)
        self.written[vertex] = max(count, self.written[vertex])

    def _feed(self, *, beyond: int = 0) -> None:
        """Write all files. `beyond`: how many more than the shape asks for."""
        for vertex, source in self.shape.sources.items():
            self._write(vertex, max(source.files, self.written[vertex] + beyond) if source.files else 0)

    async def _feed_half(self) -> None:
        """Write half of the remaining input, while something happens to the job."""
        if self.shape.arriving:
            for vertex, source in self.shape.sources.items():
                more = self.written[vertex] + max(1, (source.files - self.written[vertex]) // 2)
                await asyncio.to_thread(self._write, vertex, min(source.files, more))

    @property
    def _more_to_come(self) -> bool:
        return self.shape.arriving and any(self.written[v] < s.files for v, s in self.shape.sources.items())

    # --- what is done to it ---

    def _job_file(self, name: str, version: int, **changes: Any) -> Path:
        kafka = self._broker.address if self._broker is not None else ""
        return write_job(
            self.base / "job" / name, self.shape.document(self.base, version=version, kafka=kafka, **changes)
        )

    async def _submit(self, version: int, **changes: Any) -> None:
        file = self._job_file("job.json", version, **changes)
        assert self._cluster is not None
        self.tell(f"submitting version {version}")
        self.job_id = await self._cluster.submit(file)
        self.tell(f"accepted as {self.job_id}")

    async def _hot_restart(self, *, rescale: bool) -> None:
        """Restart it, and try again if the failure is one that the shape asks for or comes from a busy machine."""
        for _ in range(HOT_RESTARTS):
            if not await self._turned_back(rescale=rescale):
                return
        raise Wrong("hot restart failed", f"{HOT_RESTARTS} times; the job: {await self._failure()}")

    async def _turned_back(self, *, rescale: bool) -> bool:
        """Try one hot restart. Return whether it must be tried again.

        It need not be if it succeeded or if the job has ended. A job ends soon if all its input is there at the start.
        """
        assert self._cluster is not None
        changes = {"parallelism": self.shape.parallelism % 3 + 1} if rescale else {}
        file = self._job_file("next.json", 2, **changes)
        try:
            await restart(self._cluster.client, self.job_id, file, params={}, options={}, tell=lambda _: None)
        except MinflinkError as error:
            if await self._has_ended() or "time has ended" in _text(error):
                self.tell("it has ended before the hot restart, or fires its last windows")
                return False
            if error.info().code not in NOT_YET:
                raise Wrong("hot restart refused", _text(error)) from error
            self.tell(f"no hot restart: {_text(error)}")
            await asyncio.sleep(LOOK)
            await self._until("it runs", self._runs_or_has_ended)
            return True
        self.tell("hot restart begun")
        await self._feed_half()  # a version is on trial until it has processed rows

        async def over() -> HotRestartInfo | None:
            latest = (await self._job()).minflinkd.hot_restarts[0]
            if latest.state == "on-trial":  # the version before has read all that there was
                if not self._more_to_come:
                    return latest
                await self._feed_half()
            return latest if latest.over else None

        latest = await self._until("the hot restart is over", over)
        self.tell(f"hot restart {latest.state}")
        if latest.state in ("completed", "on-trial"):
            return False
        if await self._has_ended() or "time has ended" in str(latest.error):
            return False  # its input ended between the request and the cut
        if self._is_killed or any(told in str(latest.error) for told in EXPECTED):
            return True
        if "the job ends" in str(latest.error):  # it had read everything, and was not to be stopped any more
            await self._until("it has ended, as the hot restart was told", self._has_ended)
            return False
        raise Wrong("hot restart failed", f"{latest.state}: {latest.error}")

    async def _stop(self) -> bool:
        """Return False if the job ended before."""
        assert self._cluster is not None
        for again in reversed(range(STOPS)):
            try:
                self.savepoint = await self._cluster.client.stop(
                    self.job_id, str(self.base / "savepoints"), drain=False
                )
            except MinflinkError as error:
                if await self._has_ended():
                    self.tell("it has ended before the savepoint")
                    return False
                cause = await self._failure()
                expected = error.info().code in NOT_YET or any(told in cause for told in EXPECTED)
                expected = expected or self._is_killed  # what it ran on may be dead, and not be missed yet
                if not again or not expected:
                    raise Wrong("stop failed", f"{_text(error)}; the job: {cause}") from error
                self.tell(f"not stopped: {_text(error)}")
                await asyncio.sleep(LOOK)  # a death is not noticed at once
                await self._until("it runs", self._runs_or_has_ended)
            else:
                self.tell(f"stopped with {self.savepoint}")
                return True
        raise AssertionError("unreachable")

    async def _drain(self) -> None:
        """Drain the job.

        A task that was restored and has read nothing since cannot be drained until some time passes or input comes. If
        neither helps, the job starts once more as a bounded one. That happens to a task that reads windows which are
        still open.
        """
        assert self._cluster is not None
        for attempt in range(DRAINS):
            await asyncio.to_thread(self._feed, beyond=int(attempt > 0))
            await self._until("it runs", self._runs)
            try:
                await self._cluster.client.stop(self.job_id, str(self.base / "savepoints"), drain=True)
            except MinflinkError as error:
                self.tell(f"not drained: {_text(error)}")
                await self._check_failures()
            else:
                self.tell("drained")
                return
        await self._until("it runs", self._runs)
        if not await self._stop():
            raise Wrong("failed", await self._failure())
        await self._submit(version=2, restore={"path": self.savepoint}, mode="batch")

    # --- looking at it ---

    async def _await_progress(self) -> None:
        """Wait until the job has completed a checkpoint, or has ended."""
        assert self._cluster is not None
        client = self._cluster.client

        async def progress() -> bool:
            if (await self._job()).state in ENDED:
                return True
            return (await client.checkpoints(self.job_id)).counts.completed > 0

        await self._until("a checkpoint", progress)

    async def _await_idle(self) -> None:
        """Wait until all input is processed: for IDLE seconds no task has begun a micro-batch."""
        seen: tuple[int, ...] = ()
        since = time.monotonic()

        async def idle() -> bool:
            nonlocal seen, since
            now = tuple(vertex.minflinkd.batch_id for vertex in (await self._job()).vertices)
            if now != seen:
                seen, since = now, time.monotonic()
            return time.monotonic() > since + IDLE

        await self._until("all is processed", idle)

    async def _job(self) -> JobInfo:
        assert self._cluster is not None
        return await self._cluster.client.job(self.job_id)

    async def _ended(self) -> JobInfo | None:
        job = await self._job()
        return job if job.state in ENDED else None

    async def _has_ended(self) -> bool:
        return await self._ended() is not None

    @property
    def _is_killed(self) -> bool:
        return any(what.startswith("kill") for what in self.shape.done)

    async def _runs_or_has_ended(self) -> bool:
        return await self._has_ended() or await self._runs()

    async def _runs(self) -> bool:
        job = await self._job()
        if job.state in ENDED:
            raise Wrong("failed", await self._failure())
        return job.state == "RUNNING" and all(vertex.status == "RUNNING" for vertex in job.vertices)

    async def _until(self, what: str, condition: Callable[[], Awaitable[T | None]]) -> T:
        looked = time.monotonic()

        async def reached() -> T | None:
            nonlocal looked
            if time.monotonic() > looked + LOOK:
                await self._check_failures()
                looked = time.monotonic()
            return await condition()

        seen = await self._progress()
        for patience in reversed(range(PATIENCE)):  # a busy machine is slow, and a job that makes progress is not stuck
            try:
                return await until(reached, what, timeout=self._longest, pause=PAUSE, patience=1.0)
            except WaitedInVain as error:
                before, seen = seen, await self._progress()
                if seen == before or not patience:
                    raise Wrong("stuck", f"{error}; {await self._failure()}") from error
        raise AssertionError("unreachable")

    async def _progress(self) -> tuple[object, ...]:
        job = await self._job()
        return (job.state, *((vertex.status, vertex.minflinkd.batch_id) for vertex in job.vertices))

    async def _failure(self) -> str:
        assert self._cluster is not None
        return str((await self._cluster.client.exceptions(self.job_id)).root_exception)

    async def _check_failures(self) -> None:
        """Check that no failure occurred except expected ones. A job that is killed is not checked."""
        assert self._cluster is not None
        if self._is_killed:
            return
        found = (await self._cluster.client.exceptions(self.job_id)).history.entries
        expected = (
            *EXPECTED,
            *([TIME_HAS_ENDED] if {*self.shape.done} & {"hot restart", "rescale"} else []),
        )  # a version may have been rolled back because of that
        causes = [entry.stacktrace for entry in found if not any(told in entry.stacktrace for told in expected)]
        if causes:
            raise Wrong("failed", causes[0])

    # --- the end ---

    def _refusal(self, told: str, problems: list[str]) -> Verdict:
        reason = refusals.reason_of(told)
        if self.shape.refused:
            if not refusals.right_reason(self.shape, told):
                raise Wrong("no reason", f"refused ({self.shape.refused}), but for this reason: {told}")
            reason = self.shape.refused
        elif reason is None or not self.shape.may_be_refused:
            raise Wrong("refused without need", told)
        longest = max(len(problem) for problem in problems)
        if longest > refusals.LONGEST or any("\tat " in problem or "Py4J" in problem for problem in problems):
            raise Wrong("no reason", f"not for people, {longest} characters: {told[:3000]}")
        return Verdict(self.shape, "refused", reason)

    def _compared(self) -> Verdict:
        told = [self._differences(files) for files in self._possible()]
        if all(told):
            raise Wrong("wrong rows", "; ".join(told[0]))
        if left := leftovers(self.base / "out"):
            raise Wrong("leftovers", str(left[:5]))
        return Verdict(self.shape, "exact")

    def _possible(self) -> Iterator[dict[str, int]]:
        """Yield how many files of each source may have been read: all of them, but any number of a rate source."""
        rates = [vertex for vertex, source in self.shape.sources.items() if source.format == "rate"]
        for count in range(1, RATE_BATCHES + 1) if rates else (0,):
            yield self.written | dict.fromkeys(rates, count)

    def _differences(self, files: dict[str, int]) -> list[str]:
        wrong = []
        for sink, wanted in self.shape.batch(files).items():
            written = next(s for s in self.shape.all_sinks if s.id == sink)
            if told := differences(written.found(self.base / "out"), wanted):
                wrong.append(f"sink {sink}: {told}")
        return wrong


def _text(error: MinflinkError) -> str:
    return "; ".join(error.lines()) if isinstance(error, RefusedJob) else f"{error.info().code}: {error}"
