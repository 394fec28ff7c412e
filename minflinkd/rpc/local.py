"""The network inside one process: mailboxes by address, and routes over connections to parties elsewhere.

A message to a local party is passed as is, since messages are immutable. A message to another process goes through the
connection that `rpc.tcp` (or a session child's socket) has registered for the address.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import structlog

from minflinkd.metrics.rpc import RpcFigures
from minflinkd.rpc.messages import Notice, Request
from minflinkd.rpc.network import Address, Fenced, Mailbox, RpcTimeout, Unreachable
from minflinkd.runtime.component import Crashed
from minflinkd.runtime.errors import MinflinkError, RemoteError, error_info
from minflinkd.runtime.ids import LeaderId
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)

R = TypeVar("R")


class Route(Protocol):
    """A way to parties in another process."""

    async def ask(self, target: Address, request: Request[R], *, timeout: float, fence: LeaderId | None) -> R: ...

    def tell(self, target: Address, notice: Notice, *, fence: LeaderId | None) -> None: ...


class LocalNetwork:
    """A Network.

    `figures`: what becomes of the requests of parties here, and what waits in their mailboxes.

    `leads`: whether the parties here may send to other processes. A daemon that is not certain to lead sends nothing to
    TaskManagers: no deployment, no trigger, no cancellation (A11).
    """

    def __init__(self, *, leads: Callable[[], bool] = lambda: True) -> None:
        self._leads = leads
        self.figures = RpcFigures()
        self._mailboxes: dict[Address, Mailbox] = {}
        self._routes: dict[Address, Route] = {}
        self._default: Route | None = None
        self._tasks = TaskOwner("network")

    def attach(self, mailbox: Mailbox) -> None:
        mailbox.fenced = self.figures.fenced
        self._mailboxes[mailbox.address] = mailbox
        self.figures.mailboxes[mailbox.address] = mailbox.pending

    def detach(self, mailbox: Mailbox) -> None:
        if self._mailboxes.get(mailbox.address) is mailbox:
            del self._mailboxes[mailbox.address], self.figures.mailboxes[mailbox.address]

    def mailbox(self, address: str) -> Mailbox | None:
        return self._mailboxes.get(Address(address))

    def route(self, address: Address, route: Route) -> None:
        """Reach `address` over `route` from now on, instead of an earlier route."""
        self._routes[address] = route

    def unroute(self, address: Address, route: Route) -> None:
        if self._routes.get(address) is route:
            del self._routes[address]

    def default_route(self, route: Route | None) -> None:
        """Set the route to all addresses that are neither local nor routed: a TaskManager's route to its daemon."""
        self._default = route

    async def ask(self, target: Address, request: Request[R], *, timeout: float, fence: LeaderId | None = None) -> R:
        name, began = type(request).__name__, time.monotonic()
        with self.figures.asking(name).during(name):
            try:
                answer = await self._ask(target, request, timeout, fence)
            except MinflinkError as error:
                answered = not isinstance(error, Unreachable | RpcTimeout)
                self.figures.ended(name, error.info().code, time.monotonic() - began, answered=answered)
                raise
        self.figures.ended(name, "ok", time.monotonic() - began)
        return answer

    async def _ask(self, target: Address, request: Request[R], timeout: float, fence: LeaderId | None) -> R:
        mailbox = self._mailboxes.get(target)
        if mailbox is None:
            return await self.route_to(target).ask(target, request, timeout=timeout, fence=fence)
        try:
            async with asyncio.timeout(timeout):
                answer: R = await answer_of(mailbox, request, fence)
                return answer
        except TimeoutError as error:
            raise RpcTimeout(f"{target} did not answer {type(request).__name__} within {timeout:g} s") from error

    def tell(self, target: Address, notice: Notice, *, fence: LeaderId | None = None) -> None:
        mailbox = self._mailboxes.get(target)
        if mailbox is not None:
            self._tasks.job(f"{type(notice).__name__} to {target}", deliver_notice(mailbox, notice, fence))
        else:
            with contextlib.suppress(Unreachable):
                self.route_to(target).tell(target, notice, fence=fence)

    def route_to(self, target: Address) -> Route:
        """Return the route to a party in another process. Raises Unreachable."""
        route = self._routes.get(target, self._default)
        if route is None:
            raise Unreachable(f"nobody answers at {target}")
        if not self._leads():
            raise Unreachable(f"nothing is sent to {target}: it is not certain that this daemon leads")
        return route

    async def aclose(self) -> None:
        """Detach all parties: from now on requests are Unreachable and notices are lost."""
        self._mailboxes.clear()
        self.figures.mailboxes.clear()
        self._routes.clear()
        self._default = None
        await self._tasks.aclose()


async def answer_of(mailbox: Mailbox, request: Request[R], fence: LeaderId | None) -> R:
    """Return the handler's answer. Raises its errors in the form in which they would cross a process boundary."""
    try:
        with mailbox.pending.during(type(request).__name__):
            answer: R = await mailbox.deliver(request, fence)
        return answer
    except Fenced:
        mailbox.fenced[type(request).__name__] += 1
        raise
    except (Unreachable, RemoteError):
        raise
    except Crashed as error:  # the outcome is unknown, as after the death of a process
        raise Unreachable(error.message, hint=error.hint) from error
    except MinflinkError as error:
        raise RemoteError(error.info()) from error
    except Exception as error:
        log.exception("a handler failed", party=mailbox.address, message=type(request).__name__)
        raise RemoteError(error_info(error)) from error


async def deliver_notice(mailbox: Mailbox, notice: Notice, fence: LeaderId | None) -> None:
    try:
        with mailbox.pending.during(type(notice).__name__):
            await mailbox.deliver(notice, fence)
    except Fenced:
        mailbox.fenced[type(notice).__name__] += 1
        log.info("a notice of an old leader was refused", party=mailbox.address, message=type(notice).__name__)
    except Crashed:
        pass  # logged where it happened; a notice may be lost
    except Exception:
        log.exception("a handler of a notice failed", party=mailbox.address, message=type(notice).__name__)
