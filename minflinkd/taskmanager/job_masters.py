"""What a TaskManager says to a JobMaster until it is answered: at least once, so it is idempotent by its ids."""

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
    """No answer within the time that the caller gives, or nobody is there any more who could answer."""

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
    """`target`: where the JobMaster is now, None when it is no longer the job's.

    Raises RemoteError and Fenced where it is refused, JobMasterSilent after `patience` seconds, or without a target.
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
