"""Faults that the shapes must find: minflinkd, broken on purpose in every process of a run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.shapes.drawing import draw
from tests.shapes.joins import Join
from tests.shapes.shape import Node, Shape
from tests.shapes.windows import Window

FILES = ("json", "parquet", "csv", "python")  # sources with a log
WITHIN = 2_000  # how many seeds are searched for shapes that may show a fault
SHAPES = 6  # shapes that are played for each fault, on one cluster
TIMEOUT = 900.0  # seconds for each fault
ROOT = Path(__file__).parents[2]

_SITE = '''\
import importlib.abc
import importlib.util
import sys

MODULE = {module!r}
PATCH = {patch!r}


class Planting(importlib.abc.MetaPathFinder):
    """Runs the patch in the module's own namespace when it has been loaded."""

    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_patch(module):
            execute(module)
            exec(compile(PATCH, "planted", "exec"), module.__dict__)

        spec.loader.exec_module = execute_and_patch
        return spec


sys.meta_path.insert(0, Planting())
'''


@dataclass(frozen=True)
class Fault:
    """A change that breaks a module. `fits` selects the shapes that may show it."""

    module: str
    patch: str
    fits: Callable[[Shape], bool]


RESTORES = ("raise", "savepoint", "kill session", "kill taskmanager")


def _runs(fits: Callable[[Shape], bool]) -> Callable[[Shape], bool]:
    return lambda shape: not shape.refused and fits(shape)


def _source_after_exchange(shape: Shape) -> bool:
    """Whether a query reads an exchange first, then a source of files, and is restored before all input came."""

    def cut(node: Node, given: str) -> bool:
        return given in node.exchanges or shape.node(given).group != node.group

    def in_order(node: Node) -> bool:
        inputs = node.inputs[::-1] if getattr(node.operator, "swapped", False) else node.inputs
        exchanges = [at for at, given in enumerate(inputs) if cut(node, given)]
        sources = [
            at
            for at, given in enumerate(inputs)
            if not cut(node, given) and getattr(shape.node(given).operator, "format", "") in FILES
        ]
        return bool(exchanges and sources) and exchanges[0] < sources[-1]

    restored = shape.arriving and any(what in RESTORES for what in shape.done)
    return restored and any(in_order(node) for node in shape.nodes)


def _joined_with_itself(shape: Shape) -> bool:
    """Whether an aggregate is joined with an aggregate of itself, in one query."""
    return shape.features["Greatest"] > 0 and shape.features["Join inner"] > 0


def _state_of_transform(shape: Shape) -> bool:
    names = " ".join(shape.features)
    return "transformWithState" in names and any(what in RESTORES for what in shape.done)


def _raises_in_a_part(shape: Shape) -> bool:
    """Whether a function raises, probably during a drain, while another part of the job has nothing to do with it."""
    if shape.done != ("raise",) or not shape.arriving or shape.refused:
        return False
    first = next(iter(shape.sources))
    reached = {first}
    for _ in shape.nodes:
        for node in shape.nodes:
            if reached & {node.id, *node.inputs}:
                reached |= {node.id, *node.inputs}
    return len(reached) < len(shape.nodes)


def _windows_of_late_rows(shape: Shape) -> bool:
    """Whether short windows read, over an exchange, what a left join lets out a minute late.

    It lets a row without a match out only when nothing can match the row any more.
    """

    def shows(node: Node, given: str) -> bool:
        join, window = shape.node(given).operator, node.operator
        if not isinstance(join, Join) or join.name != "Join left range" or join.range < 60:
            return False
        return isinstance(window, Window) and window.size <= 60 and _lets_out(shape, given) >= 6

    return any(shows(node, given) for node in shape.nodes for given in node.exchanges)


def _lets_out(shape: Shape, join: str) -> int:
    """Return how many rows without a match a left join has."""
    node = shape.node(join)
    assert isinstance(node.operator, Join)
    return len(node.operator.unmatched(*shape.given(node, shape.rows())))


FAULTS = {
    "a source of files is numbered as if exchanges had logs": Fault(
        "minflinkd.rpc.plan_sources",
        "def source_logs(found):\n    return {node.number: node.number for node in found if not node.stateful}\n",
        _runs(_source_after_exchange),
    ),
    "Spark reuses exchanges": Fault(
        "minflinkd.taskmanager.session.spark.steady_plans",
        '_REUSE = "spark.sql.exchange.reuse.no"\nSETTINGS = {_REUSE: "false", _EXCLUDED: ",".join(_RULES)}\n',
        _runs(_joined_with_itself),
    ),
    "records of transformWithState hold the paths of another attempt": Fault(
        "minflinkd.taskmanager.session.state.schema_paths",
        "def localize(checkpoint):\n    pass\n\n\ndef relative(text):\n    return text\n",
        _runs(_state_of_transform),
    ),
    "no micro-batch is planned when a job is submitted": Fault(
        "minflinkd.taskmanager.session.spark.first_batch",
        "def plan_first_batch(*given, **named):\n    pass\n",
        lambda shape: shape.refused == "a second watermark",
    ),
    "a drain that failed leaves the other tasks as they are": Fault(
        "minflinkd.jobmaster.scheduler.failover",
        "def _stop_affected(this, tasks, error):\n"
        "    this.stop(this.state.exchanges.affected(tasks, lambda _: False))\n",
        _raises_in_a_part,
    ),
    "ids may differ in case only": Fault(
        "minflinkd.jobgraph.rules",
        "def _check_ids(graph, faults):\n    pass\n",
        lambda shape: shape.refused == "ids that differ only in case",
    ),
    "an exchange promises more than a join lets out": Fault(
        "minflinkd.taskmanager.session.plan.watermarks",
        "def _output_watermark(session, plan, processed_ms):\n    return processed_ms\n",
        _runs(_windows_of_late_rows),
    ),
    "time does not go to its end": Fault(
        "minflinkd.taskmanager.session.plan.bounded",
        "def _end_time(session, execution):\n    pass\n",
        lambda shape: shape.features["Window tumbling"] > 0 and not shape.refused,
    ),
}


def chosen(fault: Fault) -> list[int]:
    """Return the first seeds whose shapes may show the fault."""
    return list(itertools.islice((seed for seed in range(WITHIN) if fault.fits(draw(seed))), SHAPES))


async def find(fault: Fault) -> str:
    """Return the first verdict that shows the fault, or "" if there is none. The other seeds are not awaited."""
    seeds = ",".join(map(str, chosen(fault)))
    async with _shapes(fault, "--no-reduction", "--seeds", seeds, output=asyncio.subprocess.PIPE) as process:
        async with asyncio.timeout(TIMEOUT):
            return await _first_wrong(process)


async def reduce_planted(fault: Fault, seed: int, keep: Path) -> None:
    """Print the smallest shape that shows the fault, and write its files."""
    async with _shapes(fault, "--seeds", str(seed), "--keep", str(keep)) as process:
        await process.wait()


@contextlib.asynccontextmanager
async def _shapes(
    fault: Fault, *arguments: str, output: int | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        Path(directory, "sitecustomize.py").write_text(_SITE.format(module=fault.module, patch=fault.patch))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.shapes", *arguments),
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([directory, os.environ.get("PYTHONPATH", "")])},
            cwd=ROOT,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
                await process.communicate()


async def _first_wrong(process: asyncio.subprocess.Process) -> str:
    """Return the first wrong verdict, else one that is stuck. Raises AssertionError if no shape can be played."""
    assert process.stdout is not None
    told = stuck = ""
    async for line in process.stdout:
        told += line.decode(errors="replace")
        if wrong := re.match(r"--- (seed \d+ (?!not played)(\w+).*)", told.splitlines()[-1]):
            if wrong.group(2) != "stuck":
                return wrong.group(1)
            stuck = wrong.group(1)
    assert re.search(r"^\d+ seeds in ", told, re.MULTILINE), told[-3000:]
    return stuck
