"""Finds a TaskManager with a session that can do something for a job beside its tasks."""

from __future__ import annotations

import structlog

from minflinkd.rpc import messages as m
from minflinkd.rpc.network import RESOURCE_MANAGER, Address, Network, RpcTimeout, Unreachable
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import Consequence, MinflinkError, RemoteError

log = structlog.get_logger(__name__)

ASK_AGAIN = 0.25  # seconds between two requests for a session


class NoSession(MinflinkError):
    """No TaskManager could analyse the job, or read its state, in time."""

    code = "no-session"
    consequence = Consequence.RETRYABLE


async def find_session(
    network: Network, clock: Clock, request: m.FindSession, *, timeout: float, deadline: float, what: str
) -> Address:
    """Return the address of a TaskManager, at the latest at the `deadline`. Raises NoSession.

    `timeout`: the seconds up to the deadline, for the error. `what`: what it is for, and what became of it.
    """
    while True:
        found = m.SessionFound()
        try:
            found = await network.ask(RESOURCE_MANAGER, request, timeout=5.0)
            if found.address is not None:
                return Address(found.address)
        except (Unreachable, RpcTimeout, RemoteError) as error:
            log.info("no answer about sessions", error=str(error))
        if found.refused or clock.monotonic() >= deadline:
            why = found.refused or found.waiting
            raise NoSession(
                f"no TaskManager was there to {what} within {timeout:g} s" + (f": {why}" if why else ""),
                hint="`minflinkd taskmanagers` shows what there is",
            )
        await clock.sleep(ASK_AGAIN)
