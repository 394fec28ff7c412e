"""A session child without Spark, for the tests of its keeper.

The config's `conf` says how it behaves:
- `silent-to: N` never answers a ping, in generations up to N
- `never-ready-to: N` never becomes ready, in generations up to N
- `ready-with: PATH` becomes ready when there is such a file
- `leaks-to: N` opens 100 files with the first ping, in generations up to N
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
from pathlib import Path

from minflinkd.rpc.connection import Connection
from minflinkd.rpc.network import Mailbox
from minflinkd.rpc.parties import Party
from minflinkd.rpc.peer import Peer
from minflinkd.taskmanager.child import protocol as sp


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int)
    parser.add_argument("--config", type=Path)
    arguments = parser.parse_args()
    config = sp.read_config(arguments.config)
    generation = int(Path(config.working_directory).name.removeprefix("session-"))
    mailbox = Mailbox(sp.SESSION)
    leaked: list[int] = []

    async def ping(_: sp.Ping) -> sp.Pong:
        if generation <= int(config.conf.get("silent-to", 0)):
            await asyncio.Event().wait()
        if generation <= int(config.conf.get("leaks-to", 0)) and not leaked:
            leaked.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(100))
        return sp.Pong(attempts=(), threads=1)

    mailbox.on(sp.Ping, ping)
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=arguments.fd))
    connection = Connection(
        reader, writer, local=lambda _: mailbox, name="supervisor", peer=Peer(frozenset({Party.SUPERVISOR}))
    )
    connection.start()
    if (awaited := config.conf.get("ready-with")) is not None:
        while not Path(awaited).exists():  # noqa: ASYNC110 - what is awaited is a test
            await asyncio.sleep(0.01)
    if generation > int(config.conf.get("never-ready-to", 0)):
        connection.tell(sp.SUPERVISOR, sp.SessionReady(jvm_pid=os.getpid(), phases={"session": 0.1}))
    await connection.wait_closed()


asyncio.run(main())
