"""The runs of a job under test, which move forward together: the job itself, and a view of each vertex that is read."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from minflinkd.jobgraph.model import JobGraph
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId, TaskId
from minflinkd.testing import feed, graphs, keeping
from minflinkd.testing.feed import Feed, Given
from minflinkd.testing.rows import Row, plain
from minflinkd.testing.run import Cut, Run, covered
from minflinkd.testing.session import LocalSession
from minflinkd.testing.version import Version

MAIN = ""  # the job itself, among the views
_FINISHED = "it has finished"


class NotRunning(RuntimeError):
    """The job was killed, has failed or has finished."""


@dataclass
class _Strand:
    """The runs of one graph, one after the other. `cuts`: of the last checkpoint. `committed`: files by sink."""

    job_id: JobId
    home: Path
    run: Run | None = None
    cuts: dict[TaskId, Cut] = field(default_factory=dict)
    committed: dict[str, list[str]] = field(default_factory=dict)
    seen: dict[str, list[str]] = field(default_factory=dict)  # files of sinks that show their rows at once

    def homes(self, sources: Mapping[str, str]) -> dict[str, Path]:
        return feed.places(self.home, list(sources))


class World:
    """Moves the job and its views. `directory`: of this job only."""

    def __init__(self, session: LocalSession, job_id: JobId, fed: Feed, directory: Path) -> None:
        self.directory = directory
        self._session = session
        self._feed = fed
        self._strands = {MAIN: _Strand(job_id, directory / "sources")}
        self._number = 0  # of the last checkpoint
        self._covered = 0  # moments that it covers
        self._not_running = ""  # why
        self._restarted = False  # another version has read some of the moments

    @property
    def is_running(self) -> bool:
        return not self._not_running

    def require_running(self) -> None:
        """Raises NotRunning."""
        if self._not_running:
            hint = "" if self._not_running == _FINISHED else ": restore() starts it again"
            raise NotRunning(f"the job does not run, {self._not_running}{hint}")

    @property
    def watermark_ms(self) -> int:
        run = self._strands[MAIN].run
        return 0 if run is None else run.watermark_ms

    # --- forward -------------------------------------------------------------------------------------------------

    def start(self, version: Version) -> None:
        """Raises InvalidJobGraph, and RemoteError if a task does not start."""
        for name in version.setting.views:
            self._add_view(version, name)
        for name in self._strands:
            self._session.call(self._open(version, name))

    def _add_view(self, version: Version, name: str) -> None:
        if graphs.find(version.graph, name).kind in ("sql", "python"):
            self._strands[name] = _Strand(JobId(uuid4().hex), self.directory / f"sources-of-{name}")

    async def _open(self, version: Version, name: str) -> None:
        strand = self._strands[name]
        run = await self._analyzed(version, name, {})
        await run.start()
        strand.run = run

    async def _analyzed(self, version: Version, name: str, cuts: Mapping[TaskId, Cut]) -> Run:
        run = self._made(version, name)
        version.accept(await run.analyze(cuts))
        return run

    def _made(self, version: Version, name: str) -> Run:
        strand = self._strands[name]
        homes = strand.homes(version.ddl)
        for home in homes.values():
            home.mkdir(parents=True, exist_ok=True)
        graph = version.under_test(homes)
        return Run(self._session, strand.job_id, graphs.view(graph, name) if name else graph, version.artifacts)

    def advance(self, given: Given) -> None:
        """Let one more moment pass. Raises NotRunning, and RemoteError if a query fails."""
        self.require_running()
        self._feed.past.append(given)
        self._session.call(self._all(given))

    async def _all(self, given: Given) -> None:
        for strand in self._strands.values():
            await self._one(strand, given)

    async def _one(self, strand: _Strand, given: Given) -> None:
        assert strand.run is not None
        homes = strand.homes({vertex.id: "" for vertex in strand.run.graph.vertices if vertex.source is not None})
        moment = await asyncio.to_thread(feed.placed, given, homes)
        try:
            await strand.run.step(moment)
        except MinflinkError as error:
            self._not_running = f"it has failed: {error.message}"
            raise
        finally:
            self._see(strand)

    def _see(self, strand: _Strand) -> None:
        """Note what sinks have shown at once."""
        assert strand.run is not None
        for vertex in strand.run.graph.vertices:
            if vertex.sink is not None:
                seen = strand.seen.setdefault(vertex.id, [])
                seen += [file for file in strand.run.written(vertex.id) if file not in seen]

    def checkpoint(self) -> int:
        """Take a checkpoint and commit it. Returns its number. Raises NotRunning, RemoteError."""
        self.require_running()
        self._session.call(self._checkpoint())
        return self._number

    async def _checkpoint(self) -> None:
        number = self._number + 1
        cuts = {}
        for name, strand in self._strands.items():
            assert strand.run is not None
            cuts[name] = await strand.run.cut(number)
        for name, strand in self._strands.items():
            assert strand.run is not None
            await strand.run.confirm(number)
            strand.cuts = cuts[name]
            for vertex in strand.run.graph.vertices:
                if vertex.sink is not None:
                    strand.committed.setdefault(vertex.id, []).extend(covered(strand.cuts, vertex.id))
        self._number, self._covered = number, len(self._feed.past)

    def finish(self) -> None:
        """Raises NotRunning, RemoteError."""
        self.require_running()
        self._session.call(self._finish())
        self._not_running = _FINISHED

    async def _finish(self) -> None:
        for strand in self._strands.values():
            assert strand.run is not None
            await strand.run.drain()
            self._see(strand)
        await self._checkpoint()

    # --- back ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Idempotent."""
        self._end()
        self._not_running = "it was killed"

    def _end(self) -> None:
        if not self._session.is_lost:
            self._session.call(self._stop())

    async def _stop(self) -> None:
        for strand in self._strands.values():
            if strand.run is not None:
                await strand.run.stop()

    def restore(self, version: Version) -> None:
        """Start all from the last checkpoint, and let pass again what came after it. Raises RemoteError."""
        self._session.revive()
        self._session.call(self._restore(version))

    async def _restore(
        self, version: Version, runs: Mapping[str, Run] | None = None, *, allow: bool = False, meaning: bool = False
    ) -> None:
        again, self._not_running = self._feed.past[self._covered :], "it did not start"
        for name, strand in self._strands.items():
            feed.taken_back(again, strand.homes(version.ddl))
            run = runs[name] if runs is not None else self._made(version, name)
            await run.start(strand.cuts, self._number, allow_non_restored=allow, same_meaning=meaning)
            strand.run = run
        self._not_running = ""
        for given in again:
            await self._all(given)

    # --- a new version -------------------------------------------------------------------------------------------

    def replace(self, old: Version, new: Version, *, allow_non_restored: bool, allow_changed: bool) -> None:
        """Replace the version. Raises InvalidJobGraph, with the job as it was, and RemoteError."""
        if self._not_running == _FINISHED:
            self.require_running()
        if not self._not_running:
            self.checkpoint()
        kept = {name: s for name, s in self._strands.items() if name == MAIN or _has(new.graph, name)}
        runs = self._session.call(self._compared(old, new, kept, allow_non_restored, allow_changed))
        self._end()
        before, self._strands, restarted, self._restarted = self._strands, kept, self._restarted, True
        try:
            self._session.call(self._restore(new, runs, allow=allow_non_restored, meaning=not allow_changed))
        except MinflinkError:  # as in production, the version before comes back: with `restore`
            self._strands, self._restarted = before, restarted
            raise

    async def _compared(
        self, old: Version, new: Version, kept: Mapping[str, _Strand], allow_non_restored: bool, allow_changed: bool
    ) -> dict[str, Run]:
        from minflinkd.dispatcher.state_fit import compare

        runs = {}
        for name, strand in kept.items():
            run = runs[name] = self._made(new, name)
            analysis = await run.analyze(strand.cuts)
            new.accept(analysis)
            before = old.under_test(strand.homes(old.ddl))
            _, faults = compare(
                graphs.view(before, name) if name else before,
                run.graph,
                [cut.snapshot for cut in strand.cuts.values()],
                analysis.operators,
                analysis.verdicts,
                allow_non_restored=allow_non_restored,
                allow_changed=allow_changed,
            )
            new.refuse(faults)
        return runs

    # --- rows ----------------------------------------------------------------------------------------------------

    def batches(self, version: Version, vertex: str) -> list[list[Row]]:
        """Return the rows of a vertex, by micro-batch. Opens a view of it if there is none. Raises NotRunning."""
        if graphs.find(version.graph, vertex).kind == "sink":
            return self._kept(version, self._strands[MAIN], vertex)
        if vertex not in self._strands:
            self._view_later(version, vertex)
        return self._kept(version, self._strands[vertex], graphs.view_sink(vertex))

    def _kept(self, version: Version, strand: _Strand, sink: str) -> list[list[Row]]:
        if strand is self._strands[MAIN] and graphs.repeats(version.graph, sink):
            return self._read(strand.seen.get(sink, []))
        committed = strand.committed.get(sink, [])
        written = strand.run.written(sink) if strand.run is not None else []
        return self._read([*committed, *(file for file in written if file not in set(committed))])

    def committed(self, version: Version, sink: str) -> list[list[Row]]:
        strand = self._strands[MAIN]
        repeats = graphs.repeats(version.graph, sink)
        return self._read((strand.seen if repeats else strand.committed).get(sink, []))

    def _read(self, files: list[str]) -> list[list[Row]]:
        return [plain(keeping.read(self._session.rows / file)) for file in files]

    def _view_later(self, version: Version, vertex: str) -> None:
        """Open a view that begins now, and let it see all that has passed."""
        if self._restarted:
            hint = f"start the job with views=[{vertex!r}]"
            raise NotRunning(f"the rows of {vertex} cannot be had any more, a version before has read some: {hint}")
        self._add_view(version, vertex)
        try:
            self._session.call(self._catch_up(version, vertex))
        except BaseException:
            strand = self._strands.pop(vertex)
            if strand.run is not None:
                self._session.call(strand.run.stop())
            raise

    async def _catch_up(self, version: Version, vertex: str) -> None:
        await self._open(version, vertex)
        strand = self._strands[vertex]
        assert strand.run is not None
        for given in self._feed.past[: self._covered]:
            await self._one(strand, given)
        if self._not_running == _FINISHED:
            await strand.run.drain()
        if self._number:  # as if it had been there at the checkpoint
            strand.cuts = await strand.run.cut(self._number)
            await strand.run.confirm(self._number)
            sink = graphs.view_sink(vertex)
            strand.committed[sink] = covered(strand.cuts, sink)
        if self._not_running:
            await strand.run.stop()
            return
        for given in self._feed.past[self._covered :]:
            await self._one(strand, given)

    # -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._end()
        shutil.rmtree(self.directory, ignore_errors=True)


def _has(graph: JobGraph, name: str) -> bool:
    return any(vertex.id == name for vertex in graph.vertices)
