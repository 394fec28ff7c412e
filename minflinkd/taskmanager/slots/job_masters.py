"""Delivers a TaskManager's requests to a JobMaster: at least once, so each must be idempotent by its ids."""

from __future__ import annotations

from collections.abc import Callable

from minflinkd.rpc.messages import Done, Request
from minflinkd.rpc.network import Address, Network, RpcTimeout, Unreachable
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import LeaderId

ANSWER_TIMEOUT = 5.0  # seconds
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0


class JobMasterSilent(MinflinkError):
    """The JobMaster did not answer in the time given by the caller, or no longer leads the job."""

    code = "jobmaster-silent"
    consequence = Consequence.RETRYABLE


async def deliver(
    network: Network,
    clock: Clock,
    request: Request[Done],
    *,
    target: Callable[[], Address | None],
    fence: LeaderId,
    patience: float,
) -> None:
    """Repeat the request until it is answered. `target` returns the JobMaster's address, or None if it was replaced.

    Raises RemoteError and Fenced if it is refused, JobMasterSilent after `patience` seconds or without a target.
    """
    deadline = clock.monotonic() + patience
    pause = FIRST_PAUSE
    while (address := target()) is not None:
        try:
            await network.ask(address, request, timeout=ANSWER_TIMEOUT, fence=fence)
            return
        except (Unreachable, RpcTimeout) as error:
            if clock.monotonic() + pause >= deadline:
                raise JobMasterSilent(f"no answer for {patience:g} s: {error}") from error
        await clock.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    raise JobMasterSilent("the JobMaster is no longer the job's")
