"""A shape: a graph of vertices with its settings and what is done to it; its job file, and its result as a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.shapes import keyed, sinks
from tests.shapes.rows import EPOCH, SECOND, Context, Operator, Row, function
from tests.shapes.sinks import BadRecords, Sink
from tests.shapes.sources import DAY, Source
from tests.shapes.stateless import Rejecting, bad_records

ATTEMPTS = 20  # on a busy machine Python workers connect late, and Spark's time limit for them cannot be set
LARGEST = 4_000  # rows of a vertex
EARLIEST = EPOCH * SECOND - DAY // 2  # rows before it are the ones that come a day late


@dataclass(frozen=True)
class Node:
    """A vertex. `exchanges` are the inputs that it reads over an exchange."""

    id: str
    operator: Operator
    inputs: tuple[str, ...] = ()
    exchanges: frozenset[str] = frozenset()
    parallelism: int | None = None
    group: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)  # to the vertex, so that the shape is refused


@dataclass(frozen=True)
class Shape:
    """A job. Its nodes are in topological order. In the job file, they are rotated by `order`.

    `done`: what happens to the job, by the names in `tests.shapes.playing`. `arriving`: part of the input comes while
    it runs. `refused`: why it must be refused. `may_be_refused`: it may be refused, or be right.
    """

    seed: int
    nodes: tuple[Node, ...]
    sinks: tuple[Sink, ...]
    order: int = 0
    parallelism: int = 1
    max_parallelism: int | None = None
    pace: str = ""  # trigger-interval
    alignment: str = ""
    arriving: bool = False
    done: tuple[str, ...] = ()
    refused: str = ""
    may_be_refused: bool = False

    def node(self, vertex: str) -> Node:
        return next(node for node in self.nodes if node.id == vertex)

    @property
    def sources(self) -> dict[str, Source]:
        return {node.id: node.operator for node in self.nodes if isinstance(node.operator, Source)}

    @property
    def all_sinks(self) -> tuple[Sink, ...]:
        """Those of bad records, too."""
        rejecting = ((node.id, node.operator) for node in self.nodes if isinstance(node.operator, Rejecting))
        return (*self.sinks, *(BadRecords(bad_records(vertex), vertex, found.sink) for vertex, found in rejecting))

    @property
    def reads_kafka(self) -> bool:
        return any(source.format == "kafka" for source in self.sources.values())

    @property
    def features(self) -> Counter[str]:
        """What occurs in the shape, with the number of times."""
        found = Counter(node.operator.name for node in self.nodes)
        found.update(sink.name for sink in self.sinks)
        found.update(f"done: {what}" for what in self.done or ("nothing",))
        found["exchange forced"] += sum(len(node.exchanges) for node in self.nodes) + sum(
            s.exchange for s in self.sinks
        )
        read = Counter(vertex for node in self.nodes for vertex in node.inputs)
        read.update({sink.input for sink in self.sinks})
        found["read twice"] += sum(1 for count in read.values() if count > 1)
        found["source read twice"] += sum(1 for vertex in self.sources if read[vertex] > 1)
        found["slot sharing group"] += sum(1 for node in self.nodes if node.group)
        found["parallelism by vertex"] += sum(1 for node in self.nodes if node.parallelism)
        found["input arrives" if self.arriving else "input is there"] += 1
        found[f"{len(self.sources)} sources"] += 1
        found[f"{len(self.sinks)} sinks"] += 1
        found["unaligned"] += bool(self.alignment)
        found["max-parallelism"] += self.max_parallelism is not None
        found["chain of stateful operators"] += any(
            node.operator.stateful and self.node(given).operator.stateful
            for node in self.nodes
            for given in node.inputs
        )
        if self.refused:
            found[f"refused: {self.refused}"] += 1
        return Counter({name: count for name, count in found.items() if count})

    def module(self) -> str:
        """The job's artifact."""
        parts = [keyed.HEADER]
        names = {node.operator.name for node in self.nodes}
        if any(name.startswith("Numbered transform") for name in names):
            parts.append(keyed.NUMBERED)
        if any(name.startswith("Buckets transform") for name in names):
            parts.append(keyed.BUCKETS)
        if any(sink.format == "python" for sink in self.sinks):
            parts.append(sinks.SINK)
        for node in self.nodes:
            context = Context(node.id, node.inputs)
            if (body := node.operator.python(context)) is not None and node.operator.sql(context) is None:
                given = "spark" if isinstance(node.operator, Source) else "inputs"
                if "arrow_udf" in body:
                    body = "    from pyspark.sql.functions import arrow_udf\n\n" + body
                parts.append(f"\n\ndef {function(node.id)}({given}, params):\n{body}\n")
        return "".join(parts)

    def document(self, base: Path, *, version: int = 1, kafka: str = "", **changes: Any) -> dict[str, Any]:
        """Return the job file. `base`: the shape's directory, with `in` and `out`. `kafka`: the address of a broker."""
        vertices: dict[str, Any] = {node.id: self._vertex(node, version) for node in self.nodes}
        for sink in self.all_sinks:
            vertices |= sink.vertices(version)
        names = list(vertices)
        turned = names[self.order % len(names) :] + names[: self.order % len(names)]
        checkpointing = {"interval": "1 s"} | ({"alignment-timeout": self.alignment} if self.alignment else {})
        return {
            "name": f"shape-{self.seed}",
            "mode": "streaming" if self.arriving else "batch",
            "parallelism": self.parallelism,
            **({"max-parallelism": self.max_parallelism} if self.max_parallelism is not None else {}),
            "params": {
                "input": str(base / "in"),
                "output": str(base / "out"),
                "table": str(base / "table"),
                "marker": str(base / "raised"),
                **({"kafka": kafka, "topics": f"{base.name}-"} if self.reads_kafka else {}),
            },
            "artifacts": ["shape.py"],
            "checkpointing": checkpointing,
            "restart-strategy": {"kind": "fixed-delay", "attempts": ATTEMPTS, "delay": "200 ms"},
            "spark": {"spark.sql.session.timeZone": "UTC"},
            **({"trigger-interval": self.pace} if self.pace else {}),
            "vertices": {name: vertices[name] for name in turned},
            **changes,
        }

    def _vertex(self, node: Node, version: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if node.inputs:
            given = dict.fromkeys(node.inputs)
            found["inputs"] = [{"id": v, "exchange": True} if v in node.exchanges else v for v in given]
        found |= node.operator.vertex(Context(node.id, node.inputs, version))
        if node.parallelism is not None:
            found["parallelism"] = node.parallelism
        if node.group:
            found["slot-sharing-group"] = node.group
        return found | dict(node.changes)

    def batch(self, files: Mapping[str, int] | None = None) -> dict[str, Counter[Row]]:
        """Return what each sink must hold in the end. `files`: how many files of each source there were in the end."""
        rows = self.rows(files)
        rejected = {
            bad_records(node.id): node.operator.rejected(given)
            for node in self.nodes
            if isinstance(node.operator, Rejecting)
            for given in self.given(node, rows)
        }
        compared = (sink for sink in self.all_sinks if sink.is_compared)
        return {sink.id: sink.wanted(rejected.get(sink.id, rows[sink.input])) for sink in compared}

    def rows(self, files: Mapping[str, int] | None = None) -> dict[str, list[Row]]:
        """Return what each vertex must have put out in the end. Raises TooLarge."""
        rows: dict[str, list[Row]] = {}
        for node in self.nodes:
            if isinstance(source := node.operator, Source):
                count = source.files if files is None else files[node.id]
                rows[node.id] = [row for number in range(count) for row in source.file(number)]
            else:
                rows[node.id] = node.operator.rows(*self.given(node, rows))
            if len(rows[node.id]) > LARGEST:
                raise TooLarge(node.id)
        return rows

    @staticmethod
    def given(node: Node, rows: Mapping[str, list[Row]]) -> list[list[Row]]:
        """Return the rows of the vertex's inputs that it takes."""
        given = [rows[vertex] for vertex in node.inputs]
        if node.operator.stateful:  # it drops what is late
            given = [[r for r in found if r.ts >= EARLIEST] for found in given]
        return given

    def without_unread(self) -> Shape:
        """Return the shape with only the vertices that lead to a sink."""
        wanted = {sink.input for sink in self.sinks}
        for node in reversed(self.nodes):
            if node.id in wanted:
                wanted |= set(node.inputs)
        return replace(self, nodes=tuple(node for node in self.nodes if node.id in wanted))


def from_files(shape: Shape) -> Shape:
    """Return the shape with files in place of Kafka."""
    nodes = [
        replace(node, operator=replace(node.operator, format="json"))
        if isinstance(node.operator, Source) and node.operator.format == "kafka"
        else node
        for node in shape.nodes
    ]
    return replace(shape, nodes=tuple(nodes))


class TooLarge(Exception):
    """A vertex has more rows than a test should carry."""
