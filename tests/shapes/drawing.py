"""From a seed to a shape: the same seed always gives the same shape."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.shapes.joins import Join
from tests.shapes.keyed import Buckets, Numbered, Totals
from tests.shapes.refusals import made_illegal, with_its_own_fault
from tests.shapes.rows import Operator
from tests.shapes.shape import Node, Shape, TooLarge
from tests.shapes.sinks import FILES, TABLES, Sink
from tests.shapes.sources import DELAYS, PER_FILE, Source
from tests.shapes.stateless import (
    Doubled,
    Explode,
    Filter,
    Function,
    MapInto,
    Project,
    Rejecting,
    Rekey,
    StaticJoin,
    Tripping,
    Union,
)
from tests.shapes.windows import Deduplicate, Greatest, Session, Window

APIS = ("applyInPandasWithState", "transformWithStateInPandas", "transformWithState")
DONE: dict[tuple[str, ...], int] = {  # what is done to a job, with weights
    (): 8,
    ("raise",): 5,
    ("hot restart",): 5,
    ("rescale",): 1,
    ("savepoint",): 4,
    ("savepoint of all",): 2,
    ("raise", "hot restart"): 1,
    ("raise", "savepoint"): 2,
    ("kill session",): 2,
    ("kill taskmanager",): 2,
    ("kill session", "kill taskmanager"): 2,
}
DONE_AT_LENGTH: dict[tuple[str, ...], int] = {  # to some, in place of that
    ("kill taskmanager", "hot restart", "savepoint"): 3,
    ("hot restart", "kill session", "savepoint"): 2,
    ("kill session", "rescale", "kill taskmanager"): 2,
    ("kill taskmanager", "kill session", "kill taskmanager"): 2,
    ("raise", "hot restart", "savepoint"): 2,
}
OF_REJECTED = ("json", "text", "parquet", *TABLES)
AT_LENGTH = 0.08  # of the shapes
ILLEGAL = 0.12  # of the shapes
TRIES = 200
SYLLABLES = ("clicks", "Orders", "flow", "Rows", "aux", "Q", "step", "Part", "mix", "T", "sum", "Base")


@dataclass
class Relation:
    """What the vertices after a vertex need to know of its rows."""

    node: str
    timed: bool
    windowed: bool = False  # its times are ends of windows
    stateful: bool = False  # there is a stateful operator before it in its query
    blocked: bool = False  # by an operator after which Spark allows no stateful one in the same query
    aggregated: bool = False  # an aggregate is before it in its query: Spark allows no applyInPandasWithState then
    raw: bool = False  # comes from applyInPandasWithState: Spark's functions in Python workers cannot read that
    read: int = 0


def draw(seed: int) -> Shape:
    """Return the shape of a seed. It has rows at every sink, but not too many."""
    for attempt in range(TRIES):
        rng = random.Random(f"shape-{seed}-{attempt}")
        shape = _Drawing(rng, seed).shape()
        try:
            rows = shape.batch()
        except TooLarge:
            continue
        if all(rows[sink.id] for sink in shape.sinks if sink.is_compared):
            made = made_illegal(replace(shape, may_be_refused=False), rng) if rng.random() < ILLEGAL else shape
            return made if made.refused else with_its_own_fault(made)
    raise AssertionError(f"seed {seed} gives no shape in {TRIES} tries")


def _aggregates(operator: Operator) -> bool:
    """Whether Spark plans an aggregate for it. A SELECT DISTINCT is one, too."""
    return isinstance(operator, Window | Session | Greatest | Totals) or operator.name == "Deduplicate distinct"


def _uses(operator: Operator, api: str) -> bool:
    return isinstance(operator, Numbered | Buckets) and operator.api == api


def _is_rate(node: Node) -> bool:
    """Whether it is a rate source. A bounded job reads one batch of it; how much others read is not determined."""
    return isinstance(node.operator, Source) and node.operator.format == "rate"


class _Drawing:
    def __init__(self, rng: random.Random, seed: int) -> None:
        self._rng = rng
        self._seed = seed
        self._nodes: list[Node] = []
        self._relations: list[Relation] = []
        self._sinks: list[Sink] = []
        self._used: set[str] = set()
        self._done = rng.choices(list(DONE), list(DONE.values()))[0]
        more = random.Random(f"done-{seed}")  # of its own: whatever comes to be drawn here changes nothing else
        if more.random() < AT_LENGTH:
            self._done = more.choices(list(DONE_AT_LENGTH), list(DONE_AT_LENGTH.values()))[0]

    def shape(self) -> Shape:
        rng = self._rng
        self._draw_sources()
        for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 5))):
            self._draw_operator()
        self._join_leaves()
        late = rng.random() < 0.08
        self._draw_sinks(2 if late else 3)
        if late:
            self._draw_late()
        if random.Random(f"held back-{self._seed}").random() < 0.02:
            self._draw_held_back()
        return Shape(
            seed=self._seed,
            nodes=self._some_rejecting(),
            sinks=self._varied_sinks(),
            order=rng.randrange(20),
            parallelism=rng.choice((1, 1, 1, 1, 2, 2, 3)),
            max_parallelism=random.Random(f"partitions-{self._seed}").choice((None, 3, 5)),
            pace="400 ms" if self._done else "",
            alignment="300 ms" if rng.random() < 0.1 else "",
            arriving="savepoint of all" in self._done
            or (rng.random() < (0.6 if self._done else 0.25) and not any(_is_rate(node) for node in self._nodes)),
            done=self._done,
            # What a query computes twice may send no bad records.
            may_be_refused=any(isinstance(node.operator, Rejecting) for node in self._some_rejecting()),
        )

    def _some_rejecting(self) -> tuple[Node, ...]:
        """Some filters send what they drop to a sink."""
        rng = random.Random(f"rejecting-{self._seed}")
        return tuple(
            replace(node, operator=Rejecting(node.operator.divisor, node.operator.rest, rng.choice(OF_REJECTED)))
            if isinstance(node.operator, Filter) and rng.random() < 0.4
            else node
            for node in self._nodes
        )

    # --- vertices ---

    def _id(self) -> str:
        while True:
            name = self._rng.choice(SYLLABLES) + self._rng.choice(("", "_", "")) + str(self._rng.randrange(30))
            if name.lower() not in self._used:
                self._used.add(name.lower())
                return name

    def _add(self, operator: Operator, given: tuple[Relation, ...] = (), **more: bool) -> Relation:
        rng = self._rng
        names = tuple(relation.node for relation in given)
        cut = {relation.node for relation in given if rng.random() < 0.12 and not more.get("late")}
        if more.get("cut"):
            cut |= {relation.node for relation in given}
        held = {relation.node for relation in given if relation.blocked}
        if isinstance(operator, Doubled) or len(held) > 1:  # there is only one applyInPandasWithState in a query
            cut |= held
        if _uses(operator, "applyInPandasWithState"):
            cut |= {relation.node for relation in given if relation.aggregated}
        if isinstance(operator, Function | Tripping):
            cut |= {relation.node for relation in given if relation.raw}
        if operator.stateful:
            cut |= {
                relation.node for relation in given if relation.blocked or (more.get("alone") and relation.stateful)
            }
        node = Node(
            self._id(),
            operator,
            names,
            frozenset(cut),
            parallelism=rng.randint(1, 3) if rng.random() < 0.1 else None,
            group=rng.choice(("", "", "red", "blue")) if rng.random() < 0.1 and not more.get("late") else "",
        )
        self._nodes.append(node)
        inside = [relation for relation in given if relation.node not in cut]
        for relation in given:
            relation.read += 1
        made = Relation(
            node.id,
            timed=operator.keeps_time() and all(relation.timed for relation in given),
            windowed=isinstance(operator, Window | Session) or (bool(given) and all(r.windowed for r in given)),
            stateful=operator.stateful or any(relation.stateful for relation in inside),
            blocked=operator.last_stateful or any(relation.blocked for relation in inside),
            aggregated=_aggregates(operator) or any(relation.aggregated for relation in inside),
            raw=_uses(operator, "applyInPandasWithState"),
        )
        self._relations.append(made)
        return made

    def _draw_sources(self) -> None:
        rng = self._rng
        for number in range(rng.choices((1, 2, 3, 4), (50, 35, 10, 5))[0]):
            files = rng.randint(5, 8) if self._done else rng.randint(2, 6)
            rows, per_trigger = rng.randint(5, 14), rng.choice((1, 1, 2, 3))
            if rng.random() < 0.1:
                files, rows, per_trigger = 20, rng.randint(1, 3), rng.randint(4, 10)
            if number and rng.random() < 0.08:
                files = 0
            format = rng.choice((*("json", "parquet") * 4, *("csv", "python") * 2, "kafka"))
            if format == "kafka":
                rows, per_trigger = min(rows, 5), min(per_trigger, 3)
            if not self._done and not number and rng.random() < 0.06:
                format, files, rows = "rate", 1, 40
            source = Source(
                seed=self._seed * 10 + number,
                format=format,
                files=files,
                rows_per_file=rows,
                per_trigger=per_trigger,
                delay=0 if rng.random() < 0.08 else rng.choice(DELAYS),
                repeats=rng.choice((0, 0, 3)),
            )
            relation = self._add(source)
            if number == 0 and "raise" in self._done:
                relation = self._add(Tripping(at=files // 2 * PER_FILE), (relation,))
            if number == 0 and "hot restart" in self._done:
                self._add(Filter(rng.randint(5, 9), 3), (relation,))

    def _draw_operator(self) -> None:
        rng = self._rng
        given = self._pick()
        kinds = ["stateless"] * 4 + ["numbered"]
        if given.timed:
            kinds += ["window"] * 4 + ["deduplicate"] * 2 + ["buckets", "q5"]
            kinds += ["join"] * 4
        match rng.choice(kinds):
            case "stateless":
                self._draw_stateless(given)
            case "numbered":
                self._add(Numbered(rng.choice(APIS), rng.choice(("value", "list", "map"))), (given,))
            case "buckets":
                self._add(Buckets(rng.choice(APIS)), (given,))
            case "deduplicate":
                self._add(Deduplicate(rng.choice(("duplicates", "within", "distinct"))), (given,))
            case "window":
                self._add(self._window(), (given,))
            case "q5":
                counts = given if given.windowed else self._add(self._window(), (given,))
                greatest = self._add(Greatest(), (counts,))
                self._add(Join("inner", "", 0, rng.random() < 0.5, in_python=False), (counts, greatest))
            case "join":
                self._draw_join(given)

    def _draw_stateless(self, given: Relation) -> None:
        rng = self._rng
        others = [r for r in self._relations if r.timed == given.timed and r is not given]
        made: list[Operator] = [
            Project(rng.randint(1, 3), rng.randint(0, 9)),
            Rekey(2),
            Filter(rng.randint(3, 9), rng.randint(0, 2)),
            Explode(rng.randint(2, 3), rng.random() < 0.5),
            Doubled(rng.randint(2, 5)),
            Function(rng.choice(("pandas", "arrow")), rng.randint(1, 9)),
            StaticJoin(rng.choice(("inner", "left", "table-first")), rng.random() < 0.5),
        ]
        if rng.random() < 0.3:
            made.append(MapInto(rng.choice(("pandas", "arrow")), rng.randint(4, 9)))
        if others:
            made += [Union(rng.random() < 0.5)] * 2
        chosen = rng.choice(made)
        self._add(chosen, (given, rng.choice(others)) if isinstance(chosen, Union) else (given,))

    def _window(self) -> Operator:
        rng = self._rng
        if rng.random() < 0.25:
            return Session(rng.choice((3, 10, 40)))
        size = rng.choice((20, 60, 120))
        slide = size // 2 if rng.random() < 0.4 else 0
        return Window(size, slide, rng.random() < 0.8, rng.choice((1, 1, 2)), rng.random() < 0.3)

    def _draw_join(self, given: Relation) -> None:
        rng = self._rng
        timed = [r for r in self._relations if r.timed and r is not given] or [given]
        alike = [r for r in timed if r.windowed == given.windowed]
        other = rng.choice(alike or timed)
        kind = rng.choice(("inner", "inner", "left", "semi"))
        spread = rng.choice((5, 20, 60)) if rng.random() < 0.45 else 0
        on = "k" if given.windowed or rng.random() < 0.2 else "id"
        self._add(Join(kind, on, spread, rng.random() < 0.5, rng.random() < 0.3), (given, other))

    def _pick(self) -> Relation:
        leaves = [relation for relation in self._relations if not relation.read]
        return self._rng.choice(leaves if leaves and self._rng.random() < 0.8 else self._relations)

    def _join_leaves(self) -> None:
        """Join leaves until at most two are left."""
        while len(leaves := [relation for relation in self._relations if not relation.read]) > 2:
            first, second = self._rng.sample(leaves, 2)
            if first.timed and second.timed and self._rng.random() < 0.5:
                self._draw_join(first)
            else:
                self._add(Union(in_python=self._rng.random() < 0.5), (first, second))

    # --- sinks ---

    def _draw_sinks(self, most: int) -> None:
        rng = self._rng
        leaves = [relation for relation in self._relations if not relation.read]
        for relation in leaves[:most]:
            if rng.random() < 0.15:
                totals = self._add(Totals(), (relation,), alone=True)
                self._sinks.append(Sink(self._id(), totals.node, "python", mode=rng.choice(("update", "complete"))))
            else:
                self._add_sink(relation)
        inner = [r for r in self._relations if r.read and not isinstance(self._operator(r), Totals)]
        if len(self._sinks) < most and rng.random() < 0.3:
            finished = {sink.input for sink in self._sinks if sink.mode is None}
            self._add_sink(rng.choice([r for r in self._relations if r.node in finished] or inner))
        if len(self._sinks) < most and inner and rng.random() < 0.2:
            self._add_sink(rng.choice(inner))

    def _varied_sinks(self) -> tuple[Sink, ...]:
        """Some write texts, and of several one may write to the console."""
        rng = random.Random(f"sinks-{self._seed}")
        found = []
        for number, sink in enumerate(self._sinks):
            format, plain = sink.format, sink.mode is None and not sink.partitioned and sink.format != "python"
            if plain and rng.random() < 0.15:
                format = "console" if number and rng.random() < 0.4 else "text"
            found.append(replace(sink, format=format))
        return self._with_tables(found)

    def _with_tables(self, sinks: Sequence[Sink]) -> tuple[Sink, ...]:
        """Some write tables instead: append to one of Delta or Iceberg, or replace its rows."""
        rng = random.Random(f"tables-{self._seed}")
        found = []
        for sink in sinks:
            fits = sink.format != "console" and (sink.mode is None or sink.format == "python")
            if fits and rng.random() < 0.2:
                format = rng.choice(TABLES)
                compacted = format == "iceberg" and random.Random(f"compacted-{self._seed}-{sink.id}").random() < 0.5
                sink = replace(sink, format=format, compacted=compacted)
            found.append(sink)
        return tuple(found)

    def _operator(self, relation: Relation) -> Operator:
        return next(node.operator for node in self._nodes if node.id == relation.node)

    def _add_sink(self, relation: Relation) -> None:
        rng = self._rng
        format = rng.choice((*FILES, *FILES, "python"))
        partitioned = format != "python" and rng.random() < 0.15
        exchange = rng.random() < 0.05
        self._sinks.append(Sink(self._id(), relation.node, format, partitioned, exchange=exchange))

    def _draw_late(self) -> None:
        """Add late rows, in a query of their own: no other source and no exchange may affect what is late there."""
        rng = self._rng
        source = Source(
            self._seed * 10 + 9, rng.choice(("json", "parquet")), rng.randint(4, 6), 8, 1, rng.choice(DELAYS), late=True
        )
        given = self._add(source, late=True)
        windows = self._add(Window(rng.choice((20, 60)), 0, True, 1, rng.random() < 0.5), (given,), late=True)
        self._add_sink(windows)

    def _draw_held_back(self) -> None:
        """Add short windows that read, over an exchange, what a left join holds back for a minute."""
        rng = self._rng
        files, delay = rng.randint(6, 8), rng.choice(DELAYS[:2])
        left, right = (
            self._add(
                Source(self._seed * 10 + number, rng.choice(("json", "parquet")), files, rows, 1, delay), late=True
            )
            for number, rows in ((7, 12), (8, 6))
        )
        joined = self._add(Join("left", "id", 60, rng.random() < 0.5, rng.random() < 0.3), (left, right), late=True)
        windows = self._add(Window(20, 0, True, 1, rng.random() < 0.5), (joined,), late=True, cut=True)
        self._add_sink(windows)
