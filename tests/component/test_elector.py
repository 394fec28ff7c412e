"""An elector at a real ZooKeeper, through connections that can be cut (A11, A17)."""

from __future__ import annotations

import secrets

from minflinkd.ha.election import Phase, Timing
from minflinkd.ha.elector import Elector
from minflinkd.ha.service import Member
from minflinkd.ha.zookeeper.ballot import ZooKeeperBallot
from minflinkd.ha.zookeeper.session import ZooKeeperSession
from tests.proxy import Proxy
from tests.servers.zookeeper import ZooKeeper
from tests.waiting import until

SESSION = 6.0


async def test_a_server_that_hangs_costs_no_leadership(zookeeper: ZooKeeper) -> None:
    """Its host is gone without a word. The leader asks another server within its lease (A17)."""
    lost: list[str] = []
    led: list[int] = []
    async with Proxy("127.0.0.1", zookeeper.port) as one, Proxy("127.0.0.1", zookeeper.port) as other:
        session = ZooKeeperSession(
            f"127.0.0.1:{one.port},127.0.0.1:{other.port}", session_timeout=SESSION, request_timeout=SESSION / 3
        )
        elector = Elector(
            ZooKeeperBallot(session, f"/minflinkd-{secrets.token_hex(8)}"),
            member=Member(name="host:1", url="http://127.0.0.1:8081"),
            timing=Timing(lease=0.85 * SESSION, renewal=1.0),
            lead=led.append,
            step_down=lost.append,
        )
        async with session:
            await until(lambda: session.connected)
            async with elector:
                await until(lambda: led, "it leads")
                _, port = session._client._connection._socket.getpeername()
                (one if port == one.port else other).swallow()
                since = elector.state.confirmed_at
                await until(lambda: lost or elector.state.confirmed_at > since + SESSION, timeout=20)
                assert lost == []
                assert (led, elector.state.phase) == ([1], Phase.LEADING)
            one.pass_on()
            other.pass_on()
