"""Verifications of a job's checkpoints on request: of a job that runs, or that has ended and left checkpoints (C29)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minflinkd.checkpoint import messages as c
from minflinkd.checkpoint.inventory import VerifiedCheckpoint, verify_all
from minflinkd.dispatcher.operations import Key, Operations
from minflinkd.rpc.jobs import JobDetails
from minflinkd.rpc.messages import Done
from minflinkd.rpc.network import Mailbox
from minflinkd.runtime.errors import NotFound
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.storage.location import Location

KEPT = 32  # results


class Verifications:
    """They read one checkpoint at a time, whoever asks. `job` raises NotFound. They end with the daemon."""

    def __init__(
        self,
        *,
        job: Callable[[JobId], JobDetails],
        checkpoints_of: Callable[[JobId], Location],
        pointers_of: Callable[[JobId], Location | None],
        tasks: TaskOwner,
    ) -> None:
        self._job = job
        self._checkpoints_of = checkpoints_of
        self._pointers_of = pointers_of
        self._operations = Operations(tasks)
        self._results: dict[Key, tuple[VerifiedCheckpoint, ...]] = {}
        self._turn = asyncio.Lock()

    def attach(self, mailbox: Mailbox) -> None:
        mailbox.on(c.VerifyCheckpoints, self._verify)
        mailbox.on(c.GetVerification, self._result)

    async def _verify(self, request: c.VerifyCheckpoints) -> Done:
        self._job(request.job_id)
        job_id, key = request.job_id, (request.job_id, request.trigger_id)

        async def work() -> str:
            async with self._turn:
                found = await verify_all(self._checkpoints_of(job_id), self._pointers_of(job_id))
            self._results[key] = found
            for oldest in [*self._results][:-KEPT]:
                del self._results[oldest]
            return ""

        self._operations.begin(key, work)
        return Done()

    async def _result(self, request: c.GetVerification) -> c.Verification:
        key = (request.job_id, request.trigger_id)
        status = self._operations.status(key)
        if status.done and status.error is None and key not in self._results:
            raise NotFound("the result of this verification is no longer kept", hint="ask for another verification")
        return c.Verification(done=status.done, checkpoints=self._results.get(key, ()), error=status.error)
