"""Unit tests run alone in their process: no port, no child process."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.unit.conftest import nothing_outside


async def _serve() -> None:
    await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)


@pytest.mark.parametrize(
    "outside",
    [
        lambda: socket.create_server(("127.0.0.1", 0)),
        lambda: socket.create_connection(("127.0.0.1", 9)),
        lambda: subprocess.run([sys.executable, "-c", ""], check=False),
        lambda: asyncio.run(_serve()),
        lambda: os.fork(),
    ],
    ids=["listen", "connect", "process", "server", "fork"],
)
def test_a_socket_or_a_process_is_refused_even_if_the_refusal_is_caught(outside: Callable[[], object]) -> None:
    """`pytest tests/unit` needs nothing of the machine, and no test disturbs another."""

    def use() -> None:
        with nothing_outside(), suppress(AssertionError):
            outside()

    with pytest.raises(AssertionError, match="belongs in tests/component"):
        use()


def test_an_event_loop_is_not_refused() -> None:
    """It has a pair of sockets of its own."""

    async def work() -> int:
        return await asyncio.to_thread(lambda: 1)

    with nothing_outside():
        assert asyncio.run(work()) == 1
