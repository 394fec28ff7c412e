"""A whole daemon without TaskManagers, in a thread of its own, so that an attack can be watched from outside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from minflinkd.config import load_config
from minflinkd.daemon import Daemon
from tests.cluster import free_port
from tests.tokens import bearer

R = TypeVar("R")


class AttackedDaemon:
    def __init__(self, state: Path, environ: Mapping[str, str] | None = None, **more: str) -> None:
        """`more`: options, with `__` for a dot and `_` for a dash."""
        self.state = state
        settings = {
            "process.working-dir": str(state),
            "rest.port": "0",
            "resourcemanager.driver": "standalone",
            "jobmanager.rpc.port": str(free_port()),
            "resourcemanager.taskmanager-registration.timeout": "1 s",
            **{key.replace("__", ".").replace("_", "-"): value for key, value in more.items()},
        }
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="attacked daemon")
        self.thread.start()
        self.daemon = Daemon(load_config(None, {}, settings), environ or {})
        self.call(self.daemon.start())
        self.url = self.daemon.info.url

    @property
    def headers(self) -> dict[str, str]:
        return bearer(self.state)

    def call(self, work: Coroutine[Any, Any, R], timeout: float = 60.0) -> R:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def close(self) -> None:
        self.call(self.daemon.aclose())
        self.call(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedDaemon]:
    daemon = AttackedDaemon(tmp_path_factory.mktemp("attacked"))
    yield daemon
    daemon.close()
