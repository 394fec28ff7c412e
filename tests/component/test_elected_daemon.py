"""A daemon that takes part in an election at a real ZooKeeper, without TaskManagers (A10 - A13)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from minflinkd import daemon_elected
from minflinkd.cli.client import Client
from minflinkd.config import ConfigError, load_config
from minflinkd.daemon import READY_FILE
from minflinkd.daemon_elected import ElectedDaemon
from minflinkd.ha.election import LEADS
from minflinkd.ha.elector import BootClock
from minflinkd.ha.embedded import StateDirectoryTaken, UnusableStateDirectory
from minflinkd.ha.service import Member, ServiceUnavailable
from minflinkd.ha.zookeeper.ballot import ZooKeeperBallot
from minflinkd.ha.zookeeper.cluster import ZooKeeperCluster
from minflinkd.resourcemanager.launcher import StartFailed
from minflinkd.rpc.handshake import StandsBy, introduce
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import task_manager
from minflinkd.rpc.tcp import RpcUplink
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.listening import PortTaken
from minflinkd.storage.interface import StorageUnavailable
from tests.elected_daemon import Host, health, leading, not_ready
from tests.servers.zookeeper import ZooKeeper
from tests.task_manager import BareTaskManager
from tests.tokens import bearer
from tests.waiting import until

# So that a busy machine ends no leadership, and no session ends while a test waits.
LONG = {"high-availability.zookeeper.client.session-timeout": "40 s"}
ALONE = {"resourcemanager.driver": "standalone"}
SECRET, TM = b"s" * 64, ResourceId("tm-0123456789ab")


def rpc_port(host: Host) -> int:
    return int(host.options["jobmanager.rpc.port"])


async def asked_for_the_leader(place: tuple[str, int]) -> None:
    """Do a TaskManager's part of a handshake. Raises StandsBy."""
    reader, writer = await asyncio.open_connection(*place)
    try:
        async with asyncio.timeout(10):
            await introduce(reader, writer, secret=SECRET, address=task_manager(ResourceId("tm-that-asks")))
    finally:
        writer.close()


async def names(port: int, leader: str) -> None:
    """Wait until the daemon at this port stands by and names this leader."""

    async def does() -> bool:
        try:
            await asked_for_the_leader(("127.0.0.1", port))
        except StandsBy as refusal:
            return refusal.leader == leader
        return False

    await until(does, f"{port} names {leader or 'nobody'}")


@contextlib.asynccontextmanager
async def a_task_manager(port: int) -> AsyncIterator[BareTaskManager]:
    """A TaskManager that knows one of the daemons."""
    network = LocalNetwork()
    async with (
        RpcUplink(network, address=task_manager(TM), secret=SECRET, daemon=("127.0.0.1", port)),
        BareTaskManager(TM, network, slots=1, standalone=True) as manager,
    ):
        yield manager
    await network.aclose()


async def test_of_two_daemons_one_leads_and_says_who_stands_by(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """Also when it is asked through the other one, and the other one leads when it hands over (A11, A13, A15)."""
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(Host(tmp_path, "a", zookeeper.address).daemon())
        await leading(first)
        async with Host(tmp_path, "b", zookeeper.address).daemon() as second, Client(second.info.url) as client:

            async def shown() -> bool:
                return len((await client.overview()).minflinkd.standbys) == 1

            await until(shown, "the standby is shown")
            extras = (await client.overview()).minflinkd
            assert extras.leader is not None
            assert (extras.leader.url, extras.standbys[0].url) == (first.info.url, second.info.url)
            assert (await health(second))[1].role == "standby"
            await client.hand_over()  # the standby redirects it
            assert (first.handover_asked.is_set(), second.handover_asked.is_set()) == (True, False)
            first.hand_over()
            await first.aclose()
            await leading(second)
            after = (await client.overview()).minflinkd.leader
            assert after is not None
            assert (after.url, after.epoch > extras.leader.epoch) == (second.info.url, True)


async def test_a_standby_that_passes_requests_on_answers_as_the_leader_does(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    """For clients that cannot reach the leader, such as through one load balancer (A13)."""
    proxy = {"rest.standby": "proxy"}
    async with Host(tmp_path, "a", zookeeper.address).daemon() as first:
        await leading(first)
        async with (
            Host(tmp_path, "b", zookeeper.address, **proxy).daemon() as second,
            aiohttp.ClientSession(second.info.url, headers=bearer(second.state_directory)) as http,
        ):

            async def shown() -> bool:
                async with http.get("/v1/overview", allow_redirects=False) as answer:
                    if answer.status != 200:
                        return False
                    extras = (await answer.json())["minflinkd"]
                    return bool(extras["leader"]["url"] == first.info.url and extras["standbys"])

            await until(shown, "the leader's answer comes through the standby")
            async with http.post("/jobs", json={"name": "no vertices"}, allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Minflinkd-Error-Code"]) == (400, "invalid-job-graph")
            assert (await health(second))[1].role == "standby"
            async with Client(second.info.url) as client:
                await client.hand_over()
            assert (first.handover_asked.is_set(), second.handover_asked.is_set()) == (True, False)


async def test_a_standby_tells_taskmanagers_where_the_leader_is(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """A TaskManager that knows one of the daemons finds whichever leads, before and after a handover (A13)."""
    a, b = (Host(tmp_path, name, zookeeper.address, **ALONE, **LONG) for name in "ab")
    async with a.daemon() as first:
        await leading(first)
        async with b.daemon() as second:
            await names(rpc_port(b), f"127.0.0.1:{rpc_port(a)}")
            async with a_task_manager(rpc_port(b)) as manager:

                async def registered_at(daemon: ElectedDaemon) -> bool:
                    async with Client(daemon.info.url) as http:
                        return [tm.id for tm in (await http.task_managers()).taskmanagers] == [TM]

                await until(lambda: registered_at(first), "it has found the leader")
                first._elector.resign("test")
                await leading(second)
                await until(lambda: registered_at(second), "it has found the next leader")
                assert manager.registered is not None
                await names(rpc_port(a), f"127.0.0.1:{rpc_port(b)}")


async def test_a_standby_says_that_nobody_leads(own_zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """Before it has heard of any leader, and while ZooKeeper is away (A13)."""
    address = own_zookeeper.address
    await own_zookeeper.kill()
    host = Host(tmp_path / "cluster", "a", address)
    async with host.daemon() as daemon:
        await names(rpc_port(host), "")
        await own_zookeeper.restart()
        await leading(daemon)
        await own_zookeeper.kill()
        await names(rpc_port(host), "")


async def test_a_daemon_says_where_taskmanagers_reach_it(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """By the name that other hosts know, and not by the address on which it listens (A13)."""
    a = Host(tmp_path, "a", zookeeper.address, **ALONE, **LONG, **{"jobmanager.rpc.address": "localhost"})
    b = Host(tmp_path, "b", zookeeper.address, **ALONE, **LONG)
    async with a.daemon() as first:
        await leading(first)
        async with b.daemon():
            await names(rpc_port(b), f"localhost:{rpc_port(a)}")


async def test_a_leader_of_the_version_before_does_not_say_where_taskmanagers_reach_it(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    """Then a standby names nobody, and TaskManagers go through their list (A13, A15a)."""
    a, b = (Host(tmp_path, name, zookeeper.address, **ALONE, **LONG) for name in "ab")
    async with a.daemon() as first:
        await leading(first)
        first._elector.member = msgspec.structs.replace(first._elector.member, rpc="")
        async with b.daemon() as second:
            await until(lambda: second._leader() and second._members[0].rpc == "", "it knows the leader")
            await names(rpc_port(b), "")


async def test_a_daemon_whose_rpc_port_is_taken_does_not_start(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """It could not lead. It says so at once, and not only when it is elected (A13)."""
    host = Host(tmp_path, "a", zookeeper.address)
    with socket.create_server(("127.0.0.1", rpc_port(host))), pytest.raises(PortTaken, match="jobmanager"):
        async with host.daemon():
            pass


async def test_a_daemon_waits_for_zookeeper_and_says_so(own_zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """It answers all the time, is not ready while ZooKeeper is away, and leads when it comes (A13)."""
    address = own_zookeeper.address
    await own_zookeeper.kill()
    async with Host(tmp_path / "cluster", "a", address).daemon() as daemon:
        await not_ready(daemon, "coordination-unavailable: ZooKeeper at")
        await own_zookeeper.restart()
        await leading(daemon)
        assert (await health(daemon))[0] == 200


async def test_the_servers_may_be_given_with_a_path(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """As in ZooKeeper's own connection strings. The path need not be there, however long it is (A10)."""
    async with Host(tmp_path, "a", f"{zookeeper.address}/{tmp_path.name}/b/c", **LONG).daemon() as daemon:
        await leading(daemon)
    client = KazooClient(zookeeper.address)
    client.start()
    try:
        assert client.exists(f"/{tmp_path.name}/b/c/minflinkd/{tmp_path.name}/cluster") is not None
    finally:
        client.stop()
        client.close()


async def test_an_error_that_nobody_foresaw_does_not_keep_a_daemon_out_of_the_election(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what it is, and tries again (A13)."""
    cluster_id = ZooKeeperCluster.cluster_id

    async def fails(_: ZooKeeperCluster) -> str:
        raise NoNodeError("strange")

    monkeypatch.setattr(ZooKeeperCluster, "cluster_id", fails)
    async with Host(tmp_path, "a", zookeeper.address, **LONG).daemon() as daemon:
        await not_ready(daemon, "NoNodeError: strange")
        monkeypatch.setattr(ZooKeeperCluster, "cluster_id", cluster_id)
        await leading(daemon)


async def test_a_leader_that_zookeeper_answers_in_time_again_goes_on(own_zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """A11: nothing has happened. Meanwhile /overview says what is wrong."""
    options = {"high-availability.zookeeper.client.session-timeout": "50 s"}
    async with Host(tmp_path / "cluster", "a", own_zookeeper.address, **options).daemon() as daemon:
        await leading(daemon)
        async with Client(daemon.info.url) as client:
            before = (await client.overview()).minflinkd

            async def trouble() -> str:
                return (await client.overview()).minflinkd.trouble

            async def none() -> bool:
                return not await trouble()

            await own_zookeeper.kill()
            assert "coordination-unavailable" in await until(trouble, "the overview says so", timeout=10)
            await own_zookeeper.restart()
            await until(none, "ZooKeeper answers again", timeout=10)
            after = (await client.overview()).minflinkd
        assert (before.trouble, after.leader) == ("", before.leader)


async def test_a_leader_steps_down_while_zookeeper_is_away_and_leads_again(
    own_zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    """A11: it stops acting when its lease ends, and says why it does not lead."""
    async with Host(tmp_path / "cluster", "a", own_zookeeper.address).daemon() as daemon:
        await leading(daemon)
        await own_zookeeper.kill()
        await not_ready(daemon, "coordination-unavailable")
        await own_zookeeper.restart()
        await leading(daemon)


async def test_a_leader_that_was_stopped_does_nothing_when_it_wakes_up(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still believes that it leads, and no TaskManager was heard of for a minute. It asks before it acts (A11).

    When the same daemon leads again, the parts of the first leadership still do not.
    """
    async with Host(tmp_path, "a", zookeeper.address, **LONG).daemon() as elected:
        await leading(elected)
        daemon = elected._daemon
        assert daemon is not None
        assert daemon.launcher is not None
        place = daemon._storages.at(str(tmp_path)).child("late")
        await place.write_bytes(b"in time")
        before = BootClock.monotonic
        monkeypatch.setattr(BootClock, "monotonic", lambda clock: before(clock) + 90)  # as after SIGSTOP and SIGCONT

        async def acts() -> list[str]:
            done = []
            assert daemon is not None
            assert daemon.launcher is not None
            for name, act in {
                "write": place.write_bytes(b"late"),
                "delete": place.delete(),
                "start": daemon.launcher.start(ResourceId("tm-late")),
            }.items():
                with contextlib.suppress(StorageUnavailable, StartFailed):
                    await act
                    done.append(name)
            return done

        assert await acts() == []
        await until(lambda: not elected.leads, "it steps down", timeout=5)
        await leading(elected)
        assert elected._daemon is not daemon
        assert not daemon._leads()
        assert await acts() == []
        assert (tmp_path / "late").read_bytes() == b"in time"


async def test_the_next_leader_does_not_wait_until_this_one_has_closed_everything(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of it hangs, on a disk. TaskManagers are let go at once, and in the end the process is killed (A11)."""
    monkeypatch.setattr(daemon_elected, "CLOSING", 5.0)
    killed, go_on = asyncio.Event(), asyncio.Event()
    async with (
        Host(tmp_path, "a", zookeeper.address, **LONG).daemon() as first,
        Host(tmp_path, "b", zookeeper.address, **LONG).daemon() as second,
    ):
        await until(lambda: first.leads or second.leads, "one leads")
        leader, other = (first, second) if first.leads else (second, first)
        leader._kill = killed.set
        daemon = leader._daemon
        assert daemon is not None
        close = daemon.dispatcher.aclose

        async def hang() -> None:
            await go_on.wait()
            await close()

        monkeypatch.setattr(daemon.dispatcher, "aclose", hang)
        leader._elector.resign("test")
        await until(lambda: other._elector.state.phase in LEADS, "the other one is elected")
        assert not killed.is_set()
        await until(lambda: other.leads, "the other one leads")
        with pytest.raises(StandsBy):
            await asked_for_the_leader(daemon.rpc.endpoint)
        await killed.wait()
        go_on.set()


async def test_a_daemon_that_cannot_begin_to_lead_keeps_nobody_from_it(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim is gone while it waits before it tries again, and it says why it could not (A11, A13)."""
    monkeypatch.setattr(daemon_elected, "FIRST_PAUSE", 1000.0)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        taken = Host(tmp_path, "a", zookeeper.address, **LONG, **{"blob.server.port": port})
        async with taken.daemon() as first:
            await not_ready(first, "it was elected and could not begin to lead")
            async with Host(tmp_path, "b", zookeeper.address, **LONG).daemon() as second:
                await leading(second)
                assert not first.leads


async def test_a_standby_learns_of_a_leader_whose_description_was_lost_on_the_way(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would answer for as long as this leader leads that there is none (A13)."""
    describe, asked = ZooKeeperBallot.describe, 0

    async def lost_once(ballot: ZooKeeperBallot, member: Member) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ServiceUnavailable("lost")
        await describe(ballot, member)

    monkeypatch.setattr(ZooKeeperBallot, "describe", lost_once)
    async with (
        Host(tmp_path, "a", zookeeper.address, **LONG).daemon() as first,
        Host(tmp_path, "b", zookeeper.address, **LONG).daemon() as second,
    ):
        await until(lambda: first.leads or second.leads, "one leads")
        standby = second if first.leads else first
        await until(lambda: standby.status.startswith("standby, leader http"), timeout=20)


async def test_a_standby_is_ready_again_when_zookeeper_answers_again(own_zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """Its session has not ended meanwhile, so its claim has kept its place (A13)."""
    base = tmp_path / "cluster"
    async with (
        Host(base, "a", own_zookeeper.address, **LONG).daemon() as first,
        Host(base, "b", own_zookeeper.address, **LONG).daemon() as second,
    ):
        await until(lambda: first.leads or second.leads, "one leads")
        standby = second if first.leads else first
        await until(lambda: standby.status.startswith("standby, leader http"), timeout=20)
        await own_zookeeper.kill()
        await not_ready(standby, "coordination-unavailable")
        await own_zookeeper.restart()

        async def ready() -> bool:
            return (await health(standby))[0] == 200

        await until(ready, "the standby is ready", timeout=20)
        assert not standby.leads


async def test_a_standby_keeps_the_leader_in_mind_for_a_session_timeout(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer that is missing says nothing about the leader. For longer than that, there may be another (A13)."""
    async with (
        Host(tmp_path, "a", zookeeper.address, **LONG).daemon() as first,
        Host(tmp_path, "b", zookeeper.address, **LONG).daemon() as second,
    ):
        await until(lambda: first.leads or second.leads, "one leads")
        standby = second if first.leads else first
        await until(lambda: standby.status.startswith("standby, leader http"), timeout=20)
        asked = 0

        async def away() -> tuple[Member, ...]:
            nonlocal asked
            asked += 1
            raise ServiceUnavailable("no answer")

        monkeypatch.setattr(standby._cluster.ballot, "members", away)
        await until(lambda: asked >= 3, "it has looked in vain")
        assert standby.status.startswith("standby, leader http")
        assert standby._without_leader() == 0.0
        monotonic = standby._clock.monotonic
        monkeypatch.setattr(standby._clock, "monotonic", lambda: monotonic() + 40)
        await until(lambda: standby.status.startswith("no leader"), timeout=20)
        monkeypatch.undo()
        await until(lambda: standby.status.startswith("standby, leader http"), timeout=20)


async def test_a_second_daemon_leaves_the_file_of_the_one_that_holds_the_directory(
    zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    """Commands find the daemon by it. The second one says what is wrong, and takes nothing (A1)."""
    host = Host(tmp_path, "a", zookeeper.address, **LONG)
    async with host.daemon() as daemon:
        ready = daemon.state_directory / READY_FILE
        with pytest.raises(StateDirectoryTaken):
            async with host.daemon():
                pass
        assert str(daemon.info.url).encode() in ready.read_bytes()
    assert not ready.exists()


async def test_a_state_directory_that_is_none_is_told_as_such(tmp_path: Path) -> None:
    """And not what went wrong when the daemon that did not start was closed (A1)."""
    (tmp_path / "file").write_text("")
    host = Host(tmp_path, "a", "127.0.0.1:9", **{"process.working-dir": str(tmp_path / "file" / "state")})
    with pytest.raises(UnusableStateDirectory, match="file is a file"):
        async with host.daemon():
            pass


async def test_a_part_that_does_not_end_well_keeps_no_claim_and_no_directory(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader would wait until the session expires, and no daemon could start here (A1, A11)."""
    host = Host(tmp_path, "a", zookeeper.address, **LONG)
    async with host.daemon() as first:
        await leading(first)
        leadership, session = first._leadership, first._cluster._session
        assert leadership is not None
        close = leadership.aclose

        async def fails(*, hand_over: bool) -> None:
            await close(hand_over=hand_over)
            raise OSError("a disk is gone")

        monkeypatch.setattr(leadership, "aclose", fails)
    assert not session.connected
    assert not first._directory.held
    async with host.daemon() as next_one:
        await leading(next_one)  # long before the first one's session would expire


async def test_a_daemon_that_fails_to_step_down_ends(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would neither lead nor stand by, for as long as the watchdog is fed (A11, A15)."""
    async with Host(tmp_path, "a", zookeeper.address, **LONG).daemon() as daemon:
        await leading(daemon)

        async def fails() -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(daemon, "_stand_by", fails)
        daemon._elector.resign("test")
        await until(daemon.crashed.is_set, "it has crashed")
        assert isinstance(daemon.crash_cause, OSError)


@pytest.mark.slow  # the tests around it follow one leadership each
async def test_twenty_leaderships_of_one_daemon_leave_nothing_behind(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """No task, thread or descriptor more than after the first ones (A1)."""
    options = LONG | {"resourcemanager.driver": "standalone"}
    async with Host(tmp_path, "a", zookeeper.address, **options).daemon() as daemon:

        def held() -> tuple[int, int, int]:
            gc.collect()
            return len(asyncio.all_tasks()), threading.active_count(), psutil.Process().num_fds()

        before = (0, 0, 0)
        for number in range(1, 21):
            await until(lambda: daemon.leads, "it leads")
            assert daemon._elector.state.epoch == number
            if number == 5:
                before = held()
            if number < 20:
                daemon._elector.resign("test")
                await until(lambda: not daemon.leads, "it leads no more")
        await until(lambda: all(now <= then + 2 for now, then in zip(held(), before, strict=True)), timeout=10)


@pytest.mark.parametrize("leads_first", [True, False], ids=["another-daemon-leads", "nobody-leads"])
async def test_a_daemon_with_another_secret_is_kept_out_and_says_so(
    zookeeper: ZooKeeper, tmp_path: Path, leads_first: bool
) -> None:
    """TaskManagers would not accept it. It says so at once, and not only when it is elected (A13)."""
    async with contextlib.AsyncExitStack() as stack:
        own = await stack.enter_async_context(Host(tmp_path, "a", zookeeper.address).daemon())
        await leading(own)
        if not leads_first:
            await own.aclose()
        async with Host(tmp_path, "b", zookeeper.address, secret="t" * 64).daemon() as other:
            await not_ready(other, "other-cluster: the cluster has another secret")
            assert not other.leads


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b'{"format":99,"cluster_id":"0","secret":""}',
            "is from a later minflinkd (format 99; this one reads 1)",
        ),
        (b"somebody else's", "does not say which cluster it belongs to"),
    ],
)
async def test_a_daemon_does_not_lead_a_cluster_that_it_does_not_understand(
    zookeeper: ZooKeeper, tmp_path: Path, content: bytes, words: str
) -> None:
    """A15c: a newer format, or another program's node, is left alone, and the reason is in /health/ready."""
    node = f"/minflinkd/{tmp_path.name}/cluster"
    client = KazooClient(zookeeper.address)
    client.start()
    try:
        client.create(node, content, makepath=True)
        async with Host(tmp_path, "a", zookeeper.address).daemon() as daemon:
            await not_ready(daemon, words)
        assert client.get(node)[0] == content
        assert client.get_children(f"/minflinkd/{tmp_path.name}") == ["cluster"]
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize(
    "option",
    [
        "high-availability.zookeeper.quorum",
        "high-availability.storageDir",
        "execution.checkpointing.dir",
        "security.secret-file",
        "jobmanager.rpc.addresses",
    ],
)
def test_what_an_election_needs_must_be_set(tmp_path: Path, option: str) -> None:
    """Without it, the daemons would lead for themselves, or the next leader would find nothing (A10)."""
    options = Host(tmp_path, "a", "zk.example:2181").options
    with pytest.raises(ConfigError, match=f"with high-availability.type: zookeeper, {option} must be set: it "):
        load_config(None, {}, {**options, option: ""})
