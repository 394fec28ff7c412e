"""`/jobs/:jobid/vertices/:vertexid/flamegraph`: what the threads that work for a task do, from samples.

Samples are taken while somebody looks, as in Flink: once a minute at most for a task. The first answer says that they
are being taken.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import structlog
from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.declared import VERTEX, InQuery, whole
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.plan import find_task
from minflinkd.rest.schemas.daemon import FlameGraph, FlameNode
from minflinkd.rpc.jobs import TaskDetails
from minflinkd.rpc.messages import SampledStack, SampleStacks, StacksSampled
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AttemptId

log = structlog.get_logger(__name__)

FRESH = 60.0  # seconds for which samples are shown, as in Flink
SECONDS = 2.0  # that samples are taken for
PATIENCE = 30.0  # seconds for the TaskManager's answer
KEPT = 32  # tasks
ENDED, WAITING = -1, -3  # Flink's "timestamps" of a graph that is none

_TYPE = InQuery[str](
    "type",
    "Which threads: all, those that compute something, or those that wait",
    Literal["full", "on_cpu", "off_cpu", "FULL", "ON_CPU", "OFF_CPU"],
    "full",
)
_SUBTASK = InQuery[int | None]("subtaskindex", "Only threads that work on this partition", whole(most=2**31 - 1), None)


@dataclass(frozen=True)
class _Samples:
    at: float  # of the monotonic clock
    epoch_ms: int
    taken: StacksSampled


@dataclass
class _Node:
    value: int = 0
    children: dict[str, _Node] = field(default_factory=dict)


class FlameGraphRoutes(Component):
    def __init__(self, backend: Backend) -> None:
        super().__init__("flame graphs")
        self._backend = backend
        self._samples: OrderedDict[AttemptId, _Samples] = OrderedDict()
        self._taking: set[AttemptId] = set()

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/jobs/{jobid}/vertices/{vertexid}/flamegraph",
                self.graph,
                Role.VIEW,
                "What the threads that work for the vertex do",
                {200: FlameGraph},
                query=(_TYPE, _SUBTASK),
            )
        ]

    async def graph(self, request: web.Request) -> web.Response:
        kind, partition = _TYPE.of(request).lower(), _SUBTASK.of(request)
        task = find_task(await self._backend.job(request), VERTEX.of(request))
        if task.attempt_id is None or task.end_ms >= 0:
            ended = task.end_ms >= 0
            return json_answer(FlameGraph(end_timestamp=ENDED if ended else WAITING, data=None))
        known = self._samples.get(task.attempt_id)
        if known is None or self._backend.clock.monotonic() - known.at > FRESH:
            self._begin(task, task.attempt_id)
        if known is None:
            return json_answer(FlameGraph(end_timestamp=WAITING, data=None))
        stacks = [one for one in known.taken.stacks if _is_of(one, kind, partition)]
        return json_answer(FlameGraph(end_timestamp=known.epoch_ms, data=tree(stacks, known.taken.missing)))

    def _begin(self, task: TaskDetails, attempt_id: AttemptId) -> None:
        if attempt_id not in self._taking and len(self._taking) < KEPT:
            self._taking.add(attempt_id)
            self.tasks.job(f"samples of {attempt_id}", self._take(task, attempt_id))

    async def _take(self, task: TaskDetails, attempt_id: AttemptId) -> None:
        clock = self._backend.clock
        try:
            assert task.resource_id is not None
            ask = SampleStacks(attempt_id=attempt_id, seconds=SECONDS)
            taken = await self._backend.task_manager(task.resource_id, ask, PATIENCE)
        except MinflinkError as error:
            log.info("no samples of a task's threads", task=task.task.id, error=str(error))
            taken = StacksSampled(stacks=(), missing=(str(error),))
        finally:
            self._taking.discard(attempt_id)
        self._samples[attempt_id] = _Samples(clock.monotonic(), clock.epoch_ms(), taken)
        self._samples.move_to_end(attempt_id)
        while len(self._samples) > KEPT:
            self._samples.popitem(last=False)


def _is_of(stack: SampledStack, kind: str, partition: int | None) -> bool:
    if partition is not None and stack.partition != partition:
        return False
    return kind == "full" or stack.running == (kind == "on_cpu")


def tree(stacks: Iterable[SampledStack], missing: Iterable[str] = ()) -> FlameNode:
    """Return the stacks as one tree. What could not be looked at is a node without samples of its own."""
    root = _Node()
    for stack in stacks:
        root.value += stack.count
        node = root
        for frame in stack.frames:
            node = node.children.setdefault(frame, _Node())
            node.value += stack.count
    for why in missing:
        root.children.setdefault(f"not known: {why}", _Node(1))
    return _shown("root", root)


def _shown(name: str, node: _Node) -> FlameNode:
    children = sorted(node.children.items(), key=lambda one: -one[1].value)
    return FlameNode(name=name, value=node.value, children=tuple(_shown(frame, below) for frame, below in children))
