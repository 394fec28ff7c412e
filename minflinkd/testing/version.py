"""One version of a job under test: its document and graph, the files of its code, and the schemas of its vertices."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from msgspec.structs import replace

from minflinkd.jobgraph.document import JobDocument
from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.jobgraph.model import JobGraph, Watermark
from minflinkd.rpc.messages import Analysis
from minflinkd.runtime.ids import JobId
from minflinkd.testing import graphs
from minflinkd.testing.run import Run
from minflinkd.testing.session import LocalSession
from minflinkd.testing.types import UnknownType, parse, schema_ddl


@dataclass(frozen=True)
class Setting:
    """What a test wants to be different from the job file.

    `base`: what a path of a job file is relative to. `schemas`: of sources whose rows neither the job file nor Spark
    describes. `watermarks`: of sources that set one in their function: column, delay. `views`: vertices between sources
    and sinks whose rows the test reads.
    """

    base: Path
    schemas: Mapping[str, str] = field(default_factory=dict)
    watermarks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    views: tuple[str, ...] = ()
    parallelism: int = 1
    clock: datetime.datetime | str | None = None


@dataclass
class Version:
    """`schemas`: of all vertices but sinks, as Spark writes them. `ddl`: of the sources, as a job file has them."""

    document: JobDocument
    graph: JobGraph
    artifacts: dict[str, str]
    ddl: dict[str, str]
    setting: Setting
    schemas: dict[str, str]
    _session: LocalSession
    _files: AsyncExitStack

    def under_test(self, homes: Mapping[str, Path]) -> JobGraph:
        """Return the graph with sources that read there."""
        marks = {name: Watermark(column=c, delay=d) for name, (c, d) in self.setting.watermarks.items()}
        return graphs.under_test(self.graph, self.ddl, homes, self.setting.parallelism, marks)

    def accept(self, analysis: Analysis) -> None:
        """Take over the schemas that Spark has found. Raises InvalidJobGraph if it has found faults."""
        self.refuse(analysis.faults)
        self.schemas |= {str(name): schema for name, schema in analysis.schemas.items()}

    def refuse(self, faults: tuple[GraphFault, ...]) -> None:
        """Raises InvalidJobGraph if there are faults, with their lines in the job file."""
        if faults:
            found = [graphs.own_words(fault, self.graph) for fault in faults]
            error = InvalidJobGraph(self.document.locate(found))
            for fault in found:
                if fault.traceback:
                    error.add_note(f"{fault.path}:\n{fault.traceback}")
            raise error

    def close(self) -> None:
        self._session.call(self._files.aclose())


def read_version(session: LocalSession, document: JobDocument, setting: Setting) -> Version:
    """Check a document by itself, fetch what is at URLs, and find out the schemas of its sources.

    Raises InvalidJobGraph with every fault.
    """
    return session.call(_read(session, document, setting))


async def _read(session: LocalSession, document: JobDocument, setting: Setting) -> Version:
    from minflinkd.cli.job_files import with_artifacts

    files = AsyncExitStack()
    try:
        complete = await files.enter_async_context(with_artifacts(document, lambda _: None))
        graph = complete.job()
        for name in (*setting.schemas, *setting.watermarks):
            graphs.find(graph, name, ("source",))
        for name in setting.views:
            graphs.find(graph, name)
        artifacts = {
            artifact.name: str(complete.artifact_file(artifact.path).absolute())
            for artifact in graph.artifacts
            if artifact.path is not None
        }
        version = Version(document, graph, artifacts, {}, setting, {}, session, files)
        for vertex in graph.vertices:
            if vertex.source is not None:
                known = graphs.schema_of(vertex, setting.schemas, graph)
                version.ddl[vertex.id] = known or await _schema(session, version, vertex.id)
        return version
    except BaseException:
        await files.aclose()
        raise


async def _schema(session: LocalSession, version: Version, source: str) -> str:
    """Ask the source itself: Spark for a format, a function for the DataFrame that it returns."""
    alone = graphs.view(version.graph, source)
    run = Run(session, JobId(uuid4().hex), replace(alone, parallelism=1), version.artifacts)
    analysis = await run.analyze()
    faults = tuple(
        replace(fault, hint=f"{fault.hint}{'; ' if fault.hint else ''}or name its columns: schemas={{{source!r}: ...}}")
        for fault in analysis.faults
    )
    version.refuse(faults)
    try:
        return schema_ddl(parse(analysis.schemas[alone.vertex(source).id]))
    except UnknownType as error:
        problem = f"it yields a column of type {error}, for which no rows can be written in a test"
        hint = f"schemas={{{source!r}: 'the columns that the test needs'}}"
        version.refuse((GraphFault(path=f"vertices.{source}.source", problem=problem, hint=hint),))
        raise AssertionError("unreachable") from error
