"""The command line and Python scripts with several daemons: a real endpoint, and real ones that stand by (A13)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from minflinkd.cli.client import Client
from minflinkd.cli.endpoint import DaemonUnreachable, Refused, addresses
from minflinkd.cli.main import main
from minflinkd.cli.watch import follow
from minflinkd.client import Job
from minflinkd.rest.identity.access import Access
from minflinkd.rest.server import Listening
from minflinkd.rest.standby import StandbyServer
from minflinkd.rpc.jobs import JobStatus
from tests.component.cli.conftest import RunningDaemon
from tests.unit.rest.parties import RUNNING, TM

NOBODY = "http://127.0.0.1:9"


class Standby:
    """A daemon that stands by, in the event loop of the other one."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.leader = daemon.url
        self.asked = 0
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._daemon = daemon
        self._server = StandbyServer(
            [listener],
            listening=Listening(host="127.0.0.1", port=0),
            access=Access.open_to_all(),
            leader=self._ask,
            trouble=lambda: "",
        )
        daemon.call(self._server.start())

    def _ask(self) -> str:
        self.asked += 1
        return self.leader

    def close(self) -> None:
        self._daemon.call(self._server.aclose())


@pytest.fixture
def standby(daemon: RunningDaemon) -> Iterator[Standby]:
    found = Standby(daemon)
    yield found
    found.close()


def minflinkd(url: str, *arguments: str) -> str:
    done = CliRunner().invoke(main, [*arguments, "--url", url])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_list_of_addresses_is_split_at_its_commas() -> None:
    assert addresses("a:8081, https://b/ ,") == ("http://a:8081", "https://b")


@pytest.mark.parametrize("urls", ["{nobody},{leads}", "{leads},{nobody}", "{standby}", "{nobody},{standby}"])
def test_a_command_finds_the_daemon_that_leads(daemon: RunningDaemon, standby: Standby, urls: str) -> None:
    """Addresses are tried in turn, and a standby says where the leader is (A13)."""
    shown = minflinkd(urls.format(nobody=NOBODY, leads=daemon.url, standby=standby.url), "info")
    assert f"at {daemon.url}" in shown


def test_a_large_job_is_submitted_through_a_standby(daemon: RunningDaemon, standby: Standby) -> None:
    """The body of the request survives the redirection, and so does its query (A13)."""
    job = Job("large", params={"text": "x" * 4 * 1024**2})
    job.source("s", format="rate").sink("out", format="parquet", path="/data/out")
    accepted = job.submit(url=f"{NOBODY},{standby.url}")
    (submission,) = daemon.dispatcher.submissions
    assert submission.job_id == accepted.id
    assert len(json.loads(submission.document)["params"]["text"]) == 4 * 1024**2


def test_blobs_are_uploaded_to_the_leader(daemon: RunningDaemon, standby: Standby, tmp_path: Path) -> None:
    """A standby says where the leader is, and that one where its BlobServer is (A13)."""
    file = tmp_path / "large.bin"
    file.write_bytes(b"x" * 3 * 1024**2)
    minflinkd(standby.url, "blobs", "upload", str(file), "--transient")
    assert [path.stat().st_size for path in daemon.stored()] == [file.stat().st_size]


def test_a_log_is_streamed_through_a_standby(daemon: RunningDaemon, standby: Standby) -> None:
    directly = minflinkd(daemon.url, "logs", TM)
    assert directly
    assert minflinkd(standby.url, "logs", TM) == directly


def test_after_a_redirection_the_leader_is_asked_directly(daemon: RunningDaemon, standby: Standby) -> None:
    async def ask() -> None:
        async with Client(standby.url) as client:
            for _ in range(3):
                await client.jobs()

    asyncio.run(ask())
    assert standby.asked == 1


def test_a_request_waits_until_a_daemon_leads(daemon: RunningDaemon, standby: Standby) -> None:
    """Nothing was done while nobody led, so a request that must not be sent twice waits as well (A13)."""
    standby.leader = ""

    async def ask() -> None:
        async with Client(standby.url) as client:
            asyncio.get_running_loop().call_later(0.5, setattr, standby, "leader", daemon.url)
            assert (await client.overview()).minflinkd.version
            standby.leader = ""
        async with Client(standby.url) as client:
            asyncio.get_running_loop().call_later(0.5, setattr, standby, "leader", daemon.url)
            await client.hand_over()

    asyncio.run(ask())
    assert daemon.handed_over.is_set()


@pytest.mark.parametrize("leader", ["", NOBODY])
def test_waiting_for_a_leader_is_bounded(daemon: RunningDaemon, standby: Standby, leader: str) -> None:
    """Also while standbys still name one that has ended."""
    standby.leader = leader

    async def ask() -> None:
        async with Client(standby.url, patience=0.5) as client:
            await client.overview()

    began = time.monotonic()
    with pytest.raises(Refused) as refused:
        asyncio.run(ask())
    assert refused.value.answer.code == "no-leader"
    assert time.monotonic() - began < 10


def test_two_standbys_that_name_each_other_are_no_leader(daemon: RunningDaemon, standby: Standby) -> None:
    standby.leader = standby.url

    async def ask() -> None:
        async with Client(standby.url, patience=0.0, attempts=1) as client:
            await client.overview()

    with pytest.raises(Refused, match="do not agree"):
        asyncio.run(ask())


def test_without_any_daemon_the_error_names_all_addresses() -> None:
    async def ask() -> None:
        async with Client(f"{NOBODY},http://127.0.0.1:10", attempts=1) as client:
            await client.overview()

    with pytest.raises(DaemonUnreachable, match=r"127\.0\.0\.1:9, http://127\.0\.0\.1:10"):
        asyncio.run(ask())


def test_watching_a_job_says_that_nobody_leads_and_goes_on(daemon: RunningDaemon, standby: Standby) -> None:
    standby.leader = ""
    shown: list[str] = []

    def show(line: Callable[[int | None, str], str], _: str) -> None:
        shown.append(line(200, ""))
        standby.leader = daemon.url
        daemon.dispatcher.become(RUNNING, JobStatus.FINISHED)

    async def watch() -> str:
        async with Client(standby.url) as client:
            return (await follow(client, RUNNING, show)).state

    assert asyncio.run(watch()) == "FINISHED"
    assert "does not answer" in shown[0]


def test_handover_waits_for_the_standby_that_leads_next(daemon: RunningDaemon) -> None:
    """With a standby nobody has to start anything: the next leader has a higher epoch (A11, A15)."""

    def take_over() -> None:
        daemon.handed_over.wait(10)
        daemon.epoch = 8

    thread = threading.Thread(target=take_over)
    thread.start()
    shown = minflinkd(f"{NOBODY},{daemon.url}", "handover")
    thread.join()
    assert "alpha:17 leads now" in shown
    assert "(epoch 8)" in shown


def test_handover_is_not_misled_by_another_daemon_that_still_answers(
    daemon: RunningDaemon, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader knew of no standby at that moment, but one answers, with 503: it is not the one that ends (A15)."""
    monkeypatch.setattr("minflinkd.cli.handover._PATIENCE", 5.0)
    monkeypatch.setattr("minflinkd.cli.handover.lives_here", lambda *_: False)  # its process is that of this test
    standby.leader, daemon.standbys = "", ()

    def end() -> None:
        daemon.handed_over.wait(10)
        daemon.call(daemon.rest.aclose())

    thread = threading.Thread(target=end)
    thread.start()
    shown = minflinkd(f"{daemon.url},{standby.url}", "handover")
    thread.join()
    assert f"The daemon (pid {os.getpid()}) has ended" in shown


def test_a_daemon_is_known_by_its_pid_and_not_by_its_address(daemon: RunningDaemon, standby: Standby) -> None:
    """The next daemon may answer at the same address at once, as a leader or as a standby (A15)."""

    async def ask(url: str, pid: int) -> bool:
        async with Client(NOBODY) as client:
            return await client.is_at(url, pid)

    for url in (daemon.url, standby.url):
        assert asyncio.run(ask(url, os.getpid()))
        assert not asyncio.run(ask(url, os.getpid() + 1))
    assert not asyncio.run(ask(NOBODY, os.getpid()))
