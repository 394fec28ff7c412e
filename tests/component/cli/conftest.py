from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog
from click.testing import CliRunner, Result

from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.cli.main import main
from minflinkd.config.options import Item
from minflinkd.ha.service import Member
from minflinkd.ha.standing import Standing
from minflinkd.metrics.registry import Metrics
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.identity.access import Access
from minflinkd.rest.server import Entrance, Listening, LogSources, RestServer
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.log_tail import Kept
from tests.unit.rest.parties import STARTED, Dispatcher, ResourceManager, TaskManager

T = TypeVar("T")


class RunningDaemon:
    """A real RestServer and BlobServer over stand-ins.

    They have an event loop of their own, because commands run their own.
    """

    def __init__(self, blobs: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="daemon under test")
        self._thread.start()
        self.blob_directory = blobs
        self.homes = blobs.parent / "taskmanagers"
        self.network = LocalNetwork()
        self.handed_over = threading.Event()
        self.epoch = 7
        self.options: list[Item] = []
        self.standbys = (Member(name="beta:18", url="http://beta:8081"),)
        self.dispatcher = Dispatcher(self.network)
        self.resource_manager = ResourceManager(self.network)
        self.task_manager = TaskManager(self.network)
        self.blobs = BlobServer(options=BlobOptions(directory=blobs), token="told by the HTTP endpoint")
        self.backend = Backend(self.network, hand_over=self.handed_over.set)
        self.rest = RestServer(
            self.backend,
            listening=Listening(host="127.0.0.1", port=0),
            entrance=Entrance(access=Access.open_to_all()),
            about=About(
                version="0.1.0",
                config_items=lambda: self.options,
                blob_url=lambda: self.blobs.url,
                standing=lambda: Standing(
                    Member(name="alpha:17", url=self.url, leading_since_ms=STARTED, epoch=self.epoch),
                    self.standbys,
                ),
                log_tail=lambda: Kept(5000, b"one\ntwo\nthree\n"),  # 5,000 bytes before are not kept any more
            ),
            metrics=Metrics(version="0.1.0"),
            blobs=self.blobs,
            logs=LogSources(ended=self.homes),
        )
        self.call(self.blobs.start())
        self.call(self.rest.start())

    @property
    def url(self) -> str:
        return self.rest.url

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def is_replaced(self) -> None:
        """Another daemon leads, with which no TaskManager has registered yet."""
        self.epoch += 1
        self.resource_manager.registered = False

    def stored(self) -> list[Path]:
        """Return every file that the BlobServer holds."""
        return [path for path in self.blob_directory.rglob("*") if path.is_file()]

    def close(self) -> None:
        for component in (self.rest, self.blobs, self.network):
            self.call(component.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    with structlog.testing.capture_logs():  # a real daemon logs to a stderr of its own
        daemon = RunningDaemon(tmp_path / "blobs")
        yield daemon
        daemon.close()


Command = Callable[..., Result]


@pytest.fixture
def command(daemon: RunningDaemon) -> Command:
    """Run `minflinkd` with these arguments against the daemon."""

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments), env={"MINFLINKD_URL": daemon.url})

    return invoke
