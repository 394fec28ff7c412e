"""How the asyncio drivers carry out a core's Ask. There is always an outcome, because the core waits for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from minflinkd.rpc.messages import Request
from minflinkd.rpc.network import Network, Unreachable
from minflinkd.rpc.party import Answered, Ask, Outcome, Unknown, outcome_of
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import MinflinkError

log = structlog.get_logger(__name__)


async def outcome_of_asking(
    network: Network,
    clock: Clock,
    ask: Ask,
    *,
    complete: Callable[[Request[Any]], Request[Any]] = lambda request: request,
) -> Outcome:
    """Send it when it is due. `complete` adds what only the driver knows; an error that it raises is an outcome too."""
    if ask.after:
        await clock.sleep(ask.after)
    try:
        request = complete(ask.request)
        return Answered(await network.ask(ask.target, request, timeout=ask.timeout, fence=ask.fence))
    except MinflinkError as error:
        log.debug("no answer", request=type(ask.request).__name__, target=ask.target, error=str(error))
        return outcome_of(error)
    except Exception as error:
        log.exception("a request failed as nobody foresaw", request=type(ask.request).__name__, target=ask.target)
        return Unknown(Unreachable(f"{ask.target} could not be asked: {type(error).__name__}: {error}"))
