"""Two daemons that start at the same moment with one port."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack

import pytest

from minflinkd.metrics.registry import Metrics
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.identity.access import Access
from minflinkd.rest.server import Entrance, Listening, RestServer, place
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.listening import PortTaken, bind


def server(port: int, sockets: list[socket.socket]) -> RestServer:
    return RestServer(
        Backend(LocalNetwork()),
        listening=Listening(host="127.0.0.1", port=port, sockets=sockets),
        entrance=Entrance(access=Access.open_to_all()),
        about=About(version="0.1.0", config_items=list, blob_url=str),
        metrics=Metrics(version="0.1.0"),
    )


async def test_of_two_that_hold_a_port_the_second_to_listen_is_told_so() -> None:
    """The kernel lets both bind the port while neither listens. [Errno 98] alone would say nothing about options."""
    first = await bind(place("127.0.0.1", 0))
    port = first[0].getsockname()[1]
    second = await bind(place("127.0.0.1", port))
    async with AsyncExitStack() as running:
        one, other = server(port, first), server(port, second)
        await one.start()
        running.push_async_callback(one.aclose)
        running.push_async_callback(other.aclose)
        with pytest.raises(PortTaken, match=rf"port {port} of 127\.0\.0\.1 is taken \(rest\.port\)"):
            await other.start()
    for each in (*first, *second):
        each.close()
