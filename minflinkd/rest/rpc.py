"""`/rpc`: whether requests between the daemon's parties and TaskManagers are answered, and how fast (E17)."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from minflinkd.metrics.rpc import WINDOW, Ended, Pending, RpcFigures
from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.schemas.rpc import Rpc, RpcMailbox, RpcMessage
from minflinkd.rpc.network import DISPATCHER, RESOURCE_MANAGER, job_master
from minflinkd.runtime.errors import MinflinkError

MOST_MAILBOXES: Final = 50
_ALWAYS: Final = (RESOURCE_MANAGER, DISPATCHER)


class RpcRoutes:
    def __init__(self, backend: Backend, figures: RpcFigures) -> None:
        self._backend = backend
        self._figures = figures

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/rpc",
                self.rpc,
                Role.VIEW,
                "Requests between the daemon's parties and TaskManagers, of the last minute",
                {200: Rpc},
                more=(
                    "Not in Flink. `messages`: for each type `requests`, `outcomes`, `mean` and `slowest` "
                    "(milliseconds), `in-flight`. `mailboxes`: what each party has taken and not answered yet"
                ),
            )
        ]

    async def rpc(self, request: web.Request) -> web.Response:
        """Answer the figures; of JobMasters, those of jobs that the client may see."""
        hidden = await self._hidden(request)
        lately, in_flight = self._figures.lately(), self._figures.in_flight
        messages = [
            _message(name, lately.get(name, Ended()), len(in_flight.get(name, ())))
            for name in {*lately, *(name for name, pending in in_flight.items() if pending)}
        ]
        mailboxes = [
            _mailbox(address, pending)
            for address, pending in self._figures.mailboxes.items()
            if address not in hidden and (pending or address in _ALWAYS)
        ]
        mailboxes.sort(key=lambda one: (-one.oldest, one.address))
        return json_answer(
            Rpc(
                window=round(WINDOW * 1000),
                messages=tuple(sorted(messages, key=lambda one: (-one.unanswered, -(one.slowest or 0), one.message))),
                mailboxes=tuple(mailboxes[:MOST_MAILBOXES]),
                mailboxes_left_out=max(0, len(mailboxes) - MOST_MAILBOXES),
            )
        )

    async def _hidden(self, request: web.Request) -> set[str]:
        """Return the mailboxes of jobs that the client may not see: of all, if nobody knows the jobs' names now."""
        who = identity_of(request)
        if not who.jobs:
            return set()
        try:
            jobs = await self._backend.jobs.get()
        except MinflinkError:
            jobs = ()
        seen = {job_master(job.job_id) for job in jobs if who.reaches(job.name)}
        return {address for address in self._figures.mailboxes if address not in {*seen, *_ALWAYS}}


def _message(name: str, ended: Ended, in_flight: int) -> RpcMessage:
    count = ended.count
    return RpcMessage(
        message=name,
        requests=count,
        outcomes=dict(sorted(ended.outcomes.items())),
        unanswered=ended.unanswered,
        mean=round(1000 * ended.seconds / count, 2) if count else None,
        slowest=round(1000 * ended.slowest, 2) if count else None,
        in_flight=in_flight,
    )


def _mailbox(address: str, pending: Pending) -> RpcMailbox:
    message, oldest = pending.oldest()
    return RpcMailbox(address=address, waiting=len(pending), oldest=round(1000 * oldest, 1), message=message)
