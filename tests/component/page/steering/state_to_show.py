"""State of a join and of totals for the page to show, and a reading that a test can hold up."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from minflinkd.rpc import job_state as j
from minflinkd.rpc import messages as m
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId, TaskId
from tests.component.page.checkpoints_to_show import LAST
from tests.unit.rest.parties import Dispatcher

SAVEPOINT = LAST - 2  # its number in `checkpoints_to_show`
LONG = 9_007_199_254_740_993  # one more than a number of JavaScript can tell apart
KEYS = ("AA", "DL", "UA", "WN", "B6", "AS")


def _totals(rows: int) -> m.StoreTotals:
    parts = tuple(m.PartitionTotals(partition=n, rows=rows // (2 + n), bytes=40_000 // (1 + 3 * n)) for n in range(8))
    largest = tuple(
        m.LargeKey(
            key=f'{{"carrier":"{name}","window":{{"start":"2024-01-01 10:00:00"}}}}',
            rows=9 - n,
            bytes=4000,
            partition=n,
        )
        for n, name in enumerate(KEYS)
    )
    return m.StoreTotals(rows=rows, bytes=81_000, keys=rows, partitions=parts, largest=largest)


STORES = (
    m.StateStore(id="0", operator=0, kind="Aggregate", vertex="hourly", totals=_totals(1200)),
    m.StateStore(id="1:left", operator=1, kind="StreamingJoin", vertex="by_plane", name="left", totals=_totals(40)),
    m.StateStore(id="1:right", operator=1, kind="StreamingJoin", vertex="by_plane", unreadable="its schema is too old"),
)
ROWS = (
    *(
        m.StateRow(
            partition=n,
            key=f'{{"carrier":"{name}","window":{{"start":"2024-01-01 10:00:00"}}}}',
            value=f'{{"count":{LONG + n},"sum":{n}.5,"last":null}}',
            bytes=48 + n,
        )
        for n, name in enumerate(KEYS)
    ),
    m.StateRow(partition=7, key="", value="", bytes=99_000, cut=True),
)


class StateToShow:
    """`asked`: the questions. A reading ends when it is `free`, and with `error` if that is set."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.asked: list[Any] = []
        self.free = asyncio.Event()
        self.free.set()
        self.error: MinflinkError | None = None
        self.tasks: tuple[str, ...] = ("by_plane", "hourly")
        self._dispatcher = dispatcher
        dispatcher.mailbox.on(j.ListState, self._list)
        dispatcher.mailbox.on(j.ReadJobState, self._read)
        dispatcher.mailbox.on(j.CompareJobState, self._compare)

    def _checkpoint(self, job_id: JobId, asked: str) -> j.CheckpointRead:
        savepoint = not asked.isdigit() and asked != ""
        number = SAVEPOINT if savepoint else int(asked or LAST)
        triggered = self._dispatcher.checkpoints.history[0].triggered_ms
        path = asked if savepoint else f"s3://lake/{job_id}/chk-{number}"
        return j.CheckpointRead(
            job_id=job_id, checkpoint_id=number, path=path, triggered_ms=triggered, savepoint=savepoint
        )

    async def _list(self, request: j.ListState) -> j.StateOfJob:
        operators = tuple(
            j.StatefulOperator(number=one.operator, kind=one.kind, vertex=one.vertex) for one in STORES[:2]
        )
        tasks = tuple(
            j.TaskWithState(
                task_id=TaskId(name),
                batch_id=7,
                size=31_000_000,
                operators=operators if name == "by_plane" else operators[:1],
            )
            for name in self.tasks
        )
        return j.StateOfJob(checkpoint=self._checkpoint(request.job_id, request.checkpoint), tasks=tasks)

    async def _wait(self, request: Any) -> None:
        self.asked.append(request)
        await self.free.wait()
        if self.error is not None:
            raise self.error

    async def _read(self, request: j.ReadJobState) -> j.StateOfTask:
        await self._wait(request)
        question = request.question
        checkpoint = self._checkpoint(request.job_id, request.checkpoint)
        if question.sql:
            rows = (f'["AA",{LONG}]', '["DL",null]')
            result = m.StateResult(columns=("carrier", "n"), types=("string", "bigint"), rows=rows)
            stores = tuple(replace(one, totals=None) for one in STORES)
            found = m.StateFound(stores=stores, store="0", result=result, milliseconds=1200.0)
        elif question.key:
            found = m.StateFound(stores=STORES, store="0", rows=ROWS[:1], milliseconds=1200.0)
        else:
            rows_of = question.store or "0"
            found = m.StateFound(stores=STORES, store=rows_of, rows=ROWS, truncated=True, milliseconds=1200.0)
        return j.StateOfTask(checkpoint=checkpoint, task_id=TaskId(request.vertex), batch_id=7, found=found)

    async def _compare(self, request: j.CompareJobState) -> j.GrowthOfTask:
        await self._wait(request)
        grown = m.GrownKey(key='{"carrier":"AA"}', rows_before=2, rows_after=9, bytes_before=96, bytes_after=4000)
        compared = m.StoreGrowth(
            store=STORES[0], before=_totals(1000), after=_totals(1200), keys_added=230, keys_removed=30, grown=(grown,)
        )
        only_after = m.StoreGrowth(store=STORES[1], before=None, after=_totals(40))
        return j.GrowthOfTask(
            before=self._checkpoint(request.job_id, request.before),
            after=self._checkpoint(request.job_id, request.after),
            task_id=TaskId(request.vertex),
            growth=m.StateGrowth(stores=(compared, only_after), milliseconds=2100.0),
        )
