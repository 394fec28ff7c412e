"""`/jobs/:jobid/state` and `/jobs/:jobid/vertices/:vertexid/state`: what a checkpoint keeps, for people to look at.

Keys and values are what users' events contain, so more than VIEW is needed. Nothing is changed, and no task notices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.declared import JOB_ID, VERTEX, InQuery, flag, whole
from minflinkd.rest.errors import InvalidRequest
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.plan import vertex_id
from minflinkd.rest.schemas import state as s
from minflinkd.rpc import job_state as j
from minflinkd.rpc import messages as m
from minflinkd.runtime.ids import IdSource

MOST_ROWS: Final = 1000
MOST_KEYS: Final = 100
LONGEST_TIME: Final = 300  # seconds
AROUND: Final = 120.0  # seconds for what surrounds the reading: its turn, a TaskManager, the answer

_CHECKPOINT = InQuery(
    "checkpoint",
    "The number of a checkpoint, or the path of a savepoint or checkpoint; else the latest",
    str,
    "",
)
_STORE = InQuery("store", "Only this store: its id, its name, or its vertex", str, "")
_KEY = InQuery("key", "Only keys with this text, or with these fields, as a JSON object", str, "")
_SQL = InQuery("sql", "A SELECT over the view `state`, instead of the rows", str, "")
_LIMIT = InQuery("limit", "How many rows, at most", whole(most=MOST_ROWS), 100)
_LARGEST = InQuery("largest", "How many of the largest keys, or of those that grew most", whole(most=MOST_KEYS), 10)
_TIMEOUT = InQuery("timeout", "Seconds that the reading may take", whole(1, LONGEST_TIME), 60)
_NO_TOTALS = flag("no-totals", "Leave out totals and largest keys, which need all rows")
_FROM = InQuery("from", "The earlier checkpoint, as `checkpoint`", str, "")
_TO = InQuery("to", "The later checkpoint, as `checkpoint`; the latest if left out", str, "")


class StateRoutes:
    def __init__(self, backend: Backend, *, ids: IdSource) -> None:
        self._backend = backend
        self._ids = ids

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/jobs/{jobid}/state",
                self.tasks,
                Role.OPERATE,
                "Which tasks keep state in a checkpoint, from its metadata",
                {200: s.JobState},
                query=(_CHECKPOINT,),
                more="Not in Flink: tasks with their operators, and the bytes of their files",
            ),
            route.get(
                "/jobs/{jobid}/vertices/{vertexid}/state",
                self.state,
                Role.OPERATE,
                "The state of a task in a checkpoint: stores, totals, largest keys, rows",
                {200: s.VertexState},
                query=(_CHECKPOINT, _STORE, _KEY, _SQL, _LIMIT, _LARGEST, _TIMEOUT, _NO_TOTALS),
                more=(
                    "Not in Flink: `rows` (`partition`, `key`, `value`, `bytes`), or the `result` of a SELECT "
                    "(`columns`, `types`, `rows`); for each of the `stores` its types, and `totals` by partition, with "
                    "`skew` and `largest-keys`. Takes as long as `timeout` allows. See [state.md](state.md)"
                ),
            ),
            route.get(
                "/jobs/{jobid}/vertices/{vertexid}/state/growth",
                self.growth,
                Role.OPERATE,
                "What grew between two checkpoints",
                {200: s.VertexStateGrowth},
                query=(_FROM, _TO, _STORE, _LARGEST, _TIMEOUT),
                more=(
                    "Not in Flink: totals of both, `keys-added`, `keys-removed`, `keys-changed`, `grown-keys`. See "
                    "[state.md](state.md#what-grew-since-yesterday)"
                ),
            ),
        ]

    async def tasks(self, request: web.Request) -> web.Response:
        question = j.ListState(
            job_id=JOB_ID.of(request), checkpoint=_CHECKPOINT.of(request), any_job=_sees_all(request)
        )
        found = await self._backend.dispatcher(question, timeout=AROUND)
        tasks = tuple(
            s.TaskState(
                id=vertex_id(task.task_id),
                task_id=task.task_id,
                batch=_batch(task.batch_id),
                state_size=task.size,
                operators=tuple(
                    s.StatefulOperator(number=each.number, kind=each.kind, vertex=each.vertex or None)
                    for each in task.operators
                ),
            )
            for task in found.tasks
        )
        return json_answer(s.JobState(checkpoint=_checkpoint(found.checkpoint), tasks=tasks))

    async def state(self, request: web.Request) -> web.Response:
        timeout = _TIMEOUT.of(request)
        question = m.StateQuestion(
            store=_STORE.of(request),
            key=_KEY.of(request),
            sql=_SQL.of(request),
            limit=_LIMIT.of(request),
            largest=_LARGEST.of(request),
            totals=not _NO_TOTALS.of(request),
        )
        asked = j.ReadJobState(
            job_id=JOB_ID.of(request),
            vertex=await self._task(request),
            read_id=self._ids.hex(),
            question=question,
            timeout=float(timeout),
            checkpoint=_CHECKPOINT.of(request),
            any_job=_sees_all(request),
        )
        answer = await self._backend.dispatcher(asked, timeout=timeout + AROUND)
        found = answer.found
        result = found.result
        return json_answer(
            s.VertexState(
                checkpoint=_checkpoint(answer.checkpoint),
                id=vertex_id(answer.task_id),
                task_id=answer.task_id,
                batch=_batch(answer.batch_id),
                stores=tuple(map(_store, found.stores)),
                store=found.store or None,
                rows=tuple(map(_row, found.rows)),
                result=None
                if result is None
                else s.StateResult(columns=result.columns, types=result.types, rows=tuple(map(_raw, result.rows))),
                truncated=found.truncated,
                duration=found.milliseconds,
            )
        )

    async def growth(self, request: web.Request) -> web.Response:
        timeout, before = _TIMEOUT.of(request), _FROM.of(request)
        if not before:
            raise InvalidRequest("`from` is missing", hint="a checkpoint's number, or the path of a savepoint")
        asked = j.CompareJobState(
            job_id=JOB_ID.of(request),
            vertex=await self._task(request),
            read_id=self._ids.hex(),
            before=before,
            after=_TO.of(request),
            store=_STORE.of(request),
            largest=_LARGEST.of(request),
            timeout=float(timeout),
            any_job=_sees_all(request),
        )
        answer = await self._backend.dispatcher(asked, timeout=timeout + AROUND)
        return json_answer(
            s.VertexStateGrowth(
                before=_checkpoint(answer.before),
                after=_checkpoint(answer.after),
                id=vertex_id(answer.task_id),
                task_id=answer.task_id,
                stores=tuple(map(_growth, answer.growth.stores)),
                duration=answer.growth.milliseconds,
            )
        )

    async def _task(self, request: web.Request) -> str:
        """Return the task's own id for Flink's. Other texts stay: the task may be in the checkpoint only."""
        details, wanted = await self._backend.job(request), VERTEX.of(request)
        return next((task.task.id for task in details.tasks if vertex_id(task.task.id) == wanted), wanted)


def _sees_all(request: web.Request) -> bool:
    """A token for some jobs does not read savepoints of others by their paths."""
    return not identity_of(request).jobs


def _batch(number: int) -> int | None:
    return None if number < 0 else number


def _raw(json: str) -> msgspec.Raw:
    return msgspec.Raw((json or "null").encode())


def _checkpoint(read: j.CheckpointRead) -> s.ReadCheckpoint:
    return s.ReadCheckpoint(
        job_id=read.job_id,
        id=read.checkpoint_id,
        path=read.path,
        trigger_timestamp=read.triggered_ms,
        is_savepoint=read.savepoint,
    )


def _row(row: m.StateRow) -> s.StateRow:
    return s.StateRow(partition=row.partition, key=_raw(row.key), value=_raw(row.value), bytes=row.bytes, cut=row.cut)


def _store(store: m.StateStore) -> s.StateStore:
    return s.StateStore(
        id=store.id,
        operator=store.operator,
        kind=store.kind,
        vertex=store.vertex or None,
        name=store.name or None,
        form=store.form or None,
        key_type=store.key_type or None,
        value_type=store.value_type or None,
        unreadable=store.unreadable or None,
        totals=_totals(store.totals),
    )


def _totals(totals: m.StoreTotals | None) -> s.StateTotals | None:
    if totals is None:
        return None
    return s.StateTotals(
        rows=totals.rows,
        bytes=totals.bytes,
        keys=totals.keys,
        skew=skew([each.bytes for each in totals.partitions]),
        partitions=tuple(
            s.PartitionState(partition=each.partition, rows=each.rows, bytes=each.bytes) for each in totals.partitions
        ),
        largest_keys=tuple(
            s.LargeKey(key=_raw(each.key), rows=each.rows, bytes=each.bytes, partition=each.partition)
            for each in totals.largest
        ),
    )


def skew(sizes: Sequence[int]) -> float | None:
    """Return the largest of the sizes as a multiple of their mean: 1 if all are equal. None if there is nothing."""
    total = sum(sizes)
    return round(max(sizes) * len(sizes) / total, 2) if total else None


def _growth(growth: m.StoreGrowth) -> s.StoreGrowth:
    compared = growth.before is not None and growth.after is not None
    return s.StoreGrowth(
        store=_store(growth.store),
        before=_totals(growth.before),
        after=_totals(growth.after),
        keys_added=growth.keys_added if compared else None,
        keys_removed=growth.keys_removed if compared else None,
        keys_changed=growth.keys_changed if compared else None,
        grown_keys=tuple(
            s.GrownKey(
                key=_raw(each.key),
                rows_before=each.rows_before,
                rows_after=each.rows_after,
                bytes_before=each.bytes_before,
                bytes_after=each.bytes_after,
            )
            for each in growth.grown
        ),
    )
