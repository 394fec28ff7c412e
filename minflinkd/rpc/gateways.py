"""Typed doors to the parties (A2): which messages each one takes, as far as the type checker can hold callers to it."""

from __future__ import annotations

from typing import TypeVar

from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Address, Network
from minflinkd.runtime.ids import LeaderId

R = TypeVar("R")


class Gateway:
    """One party as another sees it: where it is, and the token with which to speak to it."""

    def __init__(self, network: Network, address: Address, fence: LeaderId | None, timeout: float) -> None:
        self.network = network
        self.address = address
        self.fence = fence
        self.timeout = timeout  # seconds, of a request that names none

    async def ask(self, request: m.Request[R], timeout: float | None = None) -> R:
        """Raises RemoteError, Fenced, Unreachable, RpcTimeout."""
        return await self.network.ask(
            self.address, request, timeout=self.timeout if timeout is None else timeout, fence=self.fence
        )

    def tell(self, notice: m.Notice) -> None:
        self.network.tell(self.address, notice, fence=self.fence)
