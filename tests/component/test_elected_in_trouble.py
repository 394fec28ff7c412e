"""What an elected daemon does in bad circumstances, at a real ZooKeeper: it says so, and another leads (A11 - A13)."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from minflinkd import daemon_elected
from minflinkd.cli.client import Client
from minflinkd.daemon import Daemon
from minflinkd.dispatcher.job_store import JobStore, StoredJob
from minflinkd.ha.state_format import StateDirectoryNewer
from minflinkd.jobgraph.model import JobGraph
from minflinkd.runtime.ids import JobId
from minflinkd.storage.faulty import FaultyStorage
from minflinkd.storage.location import Location
from minflinkd_local import LocalStorage
from tests.elected_daemon import Host, health, leading, metrics, not_ready
from tests.servers.zookeeper import Ensemble, ZooKeeper
from tests.waiting import until

NO_TASK_MANAGERS = {"resourcemanager.driver": "standalone"}


@contextlib.contextmanager
def connected(address: str) -> Iterator[KazooClient]:
    client = KazooClient(address)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def leads_with(monkeypatch: pytest.MonkeyPatch, host: Host, storage: FaultyStorage) -> None:
    """Whenever this host leads, its files are at fault. It notices nothing of that while it stands by."""

    class AtFault(Daemon):
        async def _start(self) -> None:
            if str(self.state_directory) == host.options["process.working-dir"]:
                self._storages.add(storage)
            await super()._start()

    monkeypatch.setattr(daemon_elected, "Daemon", AtFault)


async def test_time_without_a_leader_is_measured(own_zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """A daemon that leads no more counts on until somebody leads, and says afterwards for how long nobody did (A13)."""
    async with Host(tmp_path / "cluster", "a", own_zookeeper.address).daemon() as daemon:
        await leading(daemon)
        before = await metrics(daemon)
        assert (before["minflinkd_leader"], before["minflinkd_leadership_epoch"]) == (1, 1)
        assert before["minflinkd_adopted_tasks_total"] == 0
        await own_zookeeper.kill()

        async def without() -> float:
            found = await metrics(daemon)
            return found["minflinkd_without_leader_seconds"] if found["minflinkd_leader"] == 0 else 0.0

        first = await until(without, "it leads no more", timeout=20)

        async def longer() -> bool:
            return await without() > first

        await until(longer, "the time without a leader grows")
        await own_zookeeper.restart()
        await leading(daemon)
        after = await metrics(daemon)
        assert (after["minflinkd_leader"], after["minflinkd_leadership_epoch"]) == (1, 2)
        assert after["minflinkd_without_leader_seconds"] > first
        assert after["minflinkd_leadership_seconds"] < 60


async def test_a_leader_whose_disk_is_full_resigns_and_another_one_leads(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No leader without durable records: what it could not store, the next one would not find (A11a)."""
    full = Host(tmp_path, "full", zookeeper.address)
    leads_with(monkeypatch, full, FaultyStorage(LocalStorage(), full=True))
    async with full.daemon() as first:
        await not_ready(first, "it was elected and could not begin to lead: storage-full")
        async with Host(tmp_path, "b", zookeeper.address).daemon() as second:
            await leading(second)
            status, told = await health(first)
            assert (status, told.role) == (503, "standby")
            async with Client(first.info.url) as http:
                leader = (await http.overview()).minflinkd.leader
                assert leader is not None
                assert leader.url == second.info.url


async def test_a_storage_that_hangs_in_a_takeover_is_not_waited_for(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could be the network of one host. Another daemon tries, and this one says what it waited for (A11)."""
    monkeypatch.setattr(daemon_elected, "TAKEOVER", 0.5)
    slow = Host(tmp_path, "slow", zookeeper.address)
    leads_with(monkeypatch, slow, FaultyStorage(LocalStorage(), fail_at=1, hang=True))
    async with slow.daemon() as first:
        # Another try may follow before the second daemon is there; the storage hangs once.
        await until(lambda: "takeover-too-slow: after 0.5 s it still waited for its" in first._trouble, timeout=20)
        monkeypatch.setattr(daemon_elected, "TAKEOVER", 60)
        first._takeover = 60.0  # on a busy machine, the try that is under way may also be too slow

        async def leads() -> bool:
            return first.leads and (await health(first))[0] == 200

        await until(leads, "it leads at another try", timeout=30)


async def test_a_daemon_that_cannot_lead_makes_way_at_once(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it pauses before it tries again (A11)."""
    monkeypatch.setattr(daemon_elected, "FIRST_PAUSE", 3600.0)
    full = Host(tmp_path, "full", zookeeper.address)
    leads_with(monkeypatch, full, FaultyStorage(LocalStorage(), full=True))
    async with full.daemon() as first:
        await not_ready(first, "it was elected and could not begin to lead")
        async with Host(tmp_path, "b", zookeeper.address).daemon() as second:
            await leading(second)


@pytest.mark.parametrize("mine", [None, "minflinkd:wrong"], ids=["no-password", "wrong-password"])
async def test_a_daemon_without_the_password_says_which_file_to_look_at(
    zookeeper: ZooKeeper, tmp_path: Path, mine: str | None
) -> None:
    """It takes no part, and disturbs nobody (A13)."""
    option = "high-availability.zookeeper.client.digest-file"
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("minflinkd:secret")
    wrong.write_text(mine or "")
    async with Host(tmp_path, "a", zookeeper.address, **{option: str(right)}).daemon() as own:
        await leading(own)
        others = {} if mine is None else {option: str(wrong)}
        async with Host(tmp_path, "b", zookeeper.address, **others).daemon() as other:
            await not_ready(other, "coordination-refused: ZooKeeper at")
            await not_ready(other, option)
            await not_ready(other, "on a host whose daemon leads")
        assert (await health(own))[0] == 200


async def test_servers_that_grant_too_short_a_session_are_refused(own_zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """The lease would outlast the claim (A11). The message says what to change."""
    session = {"high-availability.zookeeper.client.session-timeout": "90 s"}
    async with Host(tmp_path / "cluster", "a", own_zookeeper.address, **session).daemon() as daemon:
        await not_ready(daemon, "grants a session timeout of 60 s instead of 90 s; raise maxSessionTimeout")


async def test_a_server_that_can_only_be_read_elects_nobody(tmp_path: Path) -> None:
    """What is left of an ensemble without a majority may answer old data. The daemon waits for the others (A11)."""
    if reason := ZooKeeper.missing():
        pytest.skip(reason)
    three = Ensemble(tmp_path / "zookeeper", flags=("-Dreadonlymode.enabled=true",))
    try:
        await three.start()
        for server in three.servers[1:]:
            await server.kill()

        async def read_only() -> bool:
            with contextlib.suppress(OSError, TimeoutError):
                return "read-only" in await three.servers[0].ask("srvr")
            return False

        await until(read_only, "the last server can only be read", timeout=60)
        async with Host(tmp_path / "cluster", "a", three.address).daemon() as daemon:
            await not_ready(daemon, "coordination-unavailable")
            assert not daemon.leads
            await three.servers[1].restart()
            await leading(daemon)
    finally:
        await three.kill()


async def test_a_state_directory_of_a_newer_version_is_refused_before_zookeeper_is_asked(tmp_path: Path) -> None:
    """A15c: nothing is changed, and the message names the version to start."""
    host = Host(tmp_path, "a", "127.0.0.1:9")
    state = Path(host.options["process.working-dir"])
    state.mkdir()
    (state / "state-version").write_text("99 9.9.9\n")
    with pytest.raises(StateDirectoryNewer, match=r"format 99, written by minflinkd 9\.9\.9") as caught:
        async with host.daemon():
            pass
    assert "start minflinkd 9.9.9 or later again" in caught.value.hint
    assert {path.name for path in state.iterdir()} <= {"state-version", "lock"}


async def test_half_a_record_in_zookeeper_is_set_aside_and_the_other_jobs_are_recovered(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    """The job of a torn record is shown as such, and its node is left as it is (A12)."""
    good, torn, foreign = JobId("a" * 32), JobId("b" * 32), JobId("c" * 32)
    local = JobStore(Location(LocalStorage(), "file", str(tmp_path / "store")))
    await local.put_job(StoredJob(job_id=good, submitted_ms=1, graph=JobGraph(name="good", vertices=())))
    stored = (tmp_path / "store" / "jobs" / f"{good}.json").read_bytes()
    contents = {good: b"i" + zlib.compress(stored), torn: (b"i" + zlib.compress(stored))[:40], foreign: b"x"}
    place = f"/minflinkd/{tmp_path.name}/records/jobs/jobs"
    with connected(zookeeper.address) as client:
        for job_id, content in contents.items():
            client.create(f"{place}/{job_id}.json", content, makepath=True)
        async with Host(tmp_path, "a", zookeeper.address, **NO_TASK_MANAGERS).daemon() as daemon:
            await leading(daemon)
            async with Client(daemon.info.url) as http:
                jobs = {job.jid: job for job in (await http.jobs()).jobs}
                assert set(jobs) == {good, torn, foreign}
                assert jobs[good].name == "good"
                for job_id in (torn, foreign):
                    (failure, *_) = (await http.exceptions(job_id)).history.entries
                    assert "cannot be read" in failure.stacktrace
        assert client.get(f"{place}/{torn}.json")[0] == contents[torn]
