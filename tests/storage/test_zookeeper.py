"""Records in ZooKeeper against the conformance tests of storages, and what makes them safe: the fence (A11a)."""

from __future__ import annotations

import asyncio
import secrets
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import structlog
from kazoo import exceptions as zk
from kazoo.client import TransactionRequest
from kazoo.security import make_digest_acl

from minflinkd.dispatcher.job_store import JobStore, StoredResult, Unreadable
from minflinkd.ha.embedded import UnusableEpoch
from minflinkd.ha.service import ClaimGone, Member, ServiceFull, ServiceRefused, ServiceUnavailable
from minflinkd.ha.zookeeper import ballot as module
from minflinkd.ha.zookeeper.ballot import ZooKeeperBallot
from minflinkd.ha.zookeeper.credentials import SASL_FILE, Credentials
from minflinkd.ha.zookeeper.records import INLINE, ZooKeeperRecords
from minflinkd.ha.zookeeper.session import ZooKeeperSession
from minflinkd.rpc.jobs import JobStatus
from minflinkd.runtime.ids import JobId
from minflinkd.storage.conformance import StorageConformance
from minflinkd.storage.conformance.objects import ODD_NAMES
from minflinkd.storage.interface import InvalidPath, Storage, StorageCorrupt, StorageFull, StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd.storage.resilient import ResilientStorage
from minflinkd_local import LocalStorage
from tests.servers.zookeeper import SaslZooKeeper, ZooKeeper
from tests.unit.rest.parties import details
from tests.waiting import until

ME = Member(name="host:1", url="http://127.0.0.1:8081")


@dataclass
class Daemon:
    """One daemon's part in ZooKeeper."""

    session: ZooKeeperSession
    ballot: ZooKeeperBallot
    root: str
    overflow: Location
    epoch: int = 0

    async def lead(self) -> None:
        await self.ballot.join(ME)
        await self.first()
        self.epoch = await self.ballot.record()
        self.records = ZooKeeperRecords(
            self.session, self.root, fence=self.ballot.fence, epoch=self.epoch, overflow=self.overflow
        )

    async def first(self) -> None:
        while (before := await self.ballot.before()) is not None:
            await self.ballot.change_of(before)

    async def write(self, name: str, data: bytes) -> None:
        await Location(self.records, "zookeeper", "/jobs").child(name).write_bytes(data)

    async def read(self, name: str) -> bytes:
        return await Location(self.records, "zookeeper", "/jobs").child(name).read_bytes()


@asynccontextmanager
async def daemon(
    server: ZooKeeper, root: str, place: Path, *, credentials: Credentials | None = None
) -> AsyncIterator[Daemon]:
    session = ZooKeeperSession(server.address, session_timeout=6, request_timeout=10, credentials=credentials)
    async with session:
        await until(lambda: session.connected)
        ballot, local = ZooKeeperBallot(session, root), LocalStorage()
        yield Daemon(session, ballot, root, Location(local, "file", str(place)))
        await ballot.leave()
        await local.aclose()


def files(directory: Path) -> list[Path]:
    """Return the files for large records. The directory goes with the last one."""
    return list(directory.iterdir()) if directory.exists() else []


@pytest.fixture
def root() -> str:
    """A cluster of its own in the server that all tests share."""
    return f"/minflinkd-{secrets.token_hex(8)}"


@pytest_asyncio.fixture(loop_scope="function")
async def leader(zookeeper: ZooKeeper, root: str, tmp_path: Path) -> AsyncIterator[Daemon]:
    async with daemon(zookeeper, root, tmp_path) as one:
        await one.lead()
        yield one


class TestZooKeeperRecords(StorageConformance):
    """All of the contract except what is asked of names and listings that records never have."""

    entries = 60
    odd_names = [name for name in ODD_NAMES if all(character < "\U00010000" for character in name)]
    test_a_listing_is_in_the_order_of_paths = None  # names of more than 16 bits
    test_a_listing_cut_off_anywhere_is_whole = None  # the same
    test_ten_thousand_entries_are_listed = None

    @pytest.fixture
    def prefix(self) -> str:
        return "/jobs"

    @pytest_asyncio.fixture
    async def storage(self, leader: Daemon) -> Storage:
        return ResilientStorage(leader.records)


async def test_a_claim_is_confirmed_until_it_is_gone(leader: Daemon) -> None:
    """By a transaction, to which a majority of the servers agrees (A11)."""
    await leader.ballot.confirm()
    await leader.session.call("delete", leader.ballot.fence[1])
    with pytest.raises(ClaimGone):
        await leader.ballot.confirm()


async def test_a_daemon_that_leads_no_more_can_neither_write_nor_delete(
    leader: Daemon, zookeeper: ZooKeeper, root: str, tmp_path: Path
) -> None:
    """ZooKeeper refuses it, whatever the daemon believes (A11a)."""
    await leader.write("a", b"one")
    node = leader.ballot.fence[1]
    async with daemon(zookeeper, root, tmp_path) as other:
        await leader.session.call("delete", node)  # as after its session has expired
        await other.lead()
        assert other.epoch > leader.epoch
        await other.write("a", b"two")
        with pytest.raises(StorageUnavailable, match="another daemon may lead"):
            await leader.write("a", b"three")
        with pytest.raises(StorageUnavailable, match="another daemon may lead"):
            await leader.records.delete(["/jobs/a"])
        with pytest.raises(ClaimGone):
            await leader.ballot.record()
        assert await leader.read("a") == b"two"


async def test_a_leadership_does_not_write_with_the_claim_of_the_next_one_of_the_same_daemon(leader: Daemon) -> None:
    """A write of the first may be repeated until the second has begun, and would undo what the second wrote (A11a)."""
    first = leader.records
    await leader.write("a", b"one")
    await leader.lead()
    await leader.write("a", b"two")
    with pytest.raises(StorageUnavailable, match="another daemon may lead"):
        await Location(first, "zookeeper", "/jobs").child("a").write_bytes(b"late")
    with pytest.raises(StorageUnavailable, match="another daemon may lead"):
        await first.delete(["/jobs/a"])
    assert await leader.read("a") == b"two"


async def test_a_stale_leader_leaves_no_large_file_that_counts(
    leader: Daemon, zookeeper: ZooKeeper, root: str, tmp_path: Path
) -> None:
    """A file that no record names is deleted by a later leader, and only if its epoch has ended (A11a)."""
    large = secrets.token_bytes(2 * INLINE)
    await leader.write("a", large)
    node = leader.ballot.fence[1]
    async with daemon(zookeeper, root, tmp_path) as other:
        await leader.session.call("delete", node)
        await other.lead()
        with pytest.raises(StorageUnavailable):
            await leader.write("a", large[::-1])
        await other.write("b", large)
        assert len(files(tmp_path)) == 3
        assert await other.records.sweep() == 1
        assert (await other.read("a"), await other.read("b")) == (large, large)
        assert len(files(tmp_path)) == 2
        await other.records.delete(["/jobs/a", "/jobs/b"])
        assert files(tmp_path) == []


async def test_a_large_record_that_is_replaced_takes_its_file_with_it(leader: Daemon, tmp_path: Path) -> None:
    """What a fenced write has made unreferenced for good is deleted (A11a)."""
    await leader.write("a", secrets.token_bytes(2 * INLINE))
    await leader.write("a", b"small")
    assert (await leader.read("a"), files(tmp_path)) == (b"small", [])


@pytest.mark.parametrize("torn", [b"i\x78\x9c\x4b", b"p", b"p12", b"p1:../x", b"p1:\xff", b"?"])
async def test_a_torn_record_is_reported_and_the_others_are_read(leader: Daemon, root: str, torn: bytes) -> None:
    """One bad entry costs no other (A12)."""
    await leader.write("good", b"data")
    await leader.write("torn", b"data")
    await leader.session.call("set", f"{root}/records/jobs/torn", torn)
    with pytest.raises(StorageCorrupt):
        await leader.read("torn")
    assert await leader.read("good") == b"data"
    assert [entry.path async for entry in leader.records.list("/jobs")] == ["/jobs/good", "/jobs/torn"]
    await leader.write("torn", b"whole")
    assert await leader.read("torn") == b"whole"


async def test_a_torn_result_costs_no_other_job(leader: Daemon, root: str) -> None:
    """The next leader reports it and recovers the rest (A12)."""
    store = JobStore(Location(ResilientStorage(leader.records), "zookeeper", "/jobs"), shared=True)
    for number in "12":
        ended = details(JobId(number * 32), JobStatus.FINISHED)
        await store.put_result(StoredResult(dirty=False, details=ended))
    await leader.session.call("set", f"{root}/records/jobs/results/{'1' * 32}.json", b"i\x78\x9c\x4b")
    torn, whole = sorted(await store.results(await store.result_ids()), key=lambda one: isinstance(one, StoredResult))
    assert isinstance(torn, Unreadable)
    assert isinstance(whole, StoredResult)
    assert await store.jobs() == []


TORN = [b"i\x78\x9c\x4b", b"p12", b"p1:../../a", b"p1:\xff", b"somebody else's"]


@pytest.mark.parametrize("content", TORN)
async def test_a_torn_record_is_listed_and_can_be_deleted(leader: Daemon, root: str, content: bytes) -> None:
    """A listing that failed for one record would hide all the others (A12)."""
    await leader.write("good", b"data")
    await leader.write("torn", b"data")
    await leader.session.call("set", f"{root}/records/jobs/torn", content)
    assert [entry.path async for entry in leader.records.list("/jobs")] == ["/jobs/good", "/jobs/torn"]
    with pytest.raises(StorageCorrupt):
        await leader.read("torn")
    await leader.records.delete(["/jobs/torn"])
    assert [entry.path async for entry in leader.records.list("/jobs")] == ["/jobs/good"]


async def test_while_a_record_cannot_be_read_no_large_file_is_swept(
    leader: Daemon, zookeeper: ZooKeeper, root: str, tmp_path: Path
) -> None:
    """It could be the file that this record names (A12)."""
    large = secrets.token_bytes(2 * INLINE)
    await leader.write("a", large)
    name, whole = f"{root}/records/jobs/a", (await leader.session.call("get", f"{root}/records/jobs/a"))[0]
    await leader.session.call("delete", leader.ballot.fence[1])
    async with daemon(zookeeper, root, tmp_path) as other:
        await other.lead()
        await other.session.call("set", name, whole[:20])
        assert await other.records.sweep() == 0
        await other.session.call("set", name, whole)  # restored
        assert await other.read("a") == large


async def test_a_large_record_does_not_stop_the_event_loop(leader: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph of a large job is compressed and unpacked in a thread: the lease is renewed meanwhile (A11)."""
    used: dict[str, int] = {}

    def noted(work: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
        def run(data: bytes) -> bytes:
            used[work.__name__] = threading.get_ident()
            return work(data)

        return run

    for work in (zlib.compress, zlib.decompress):
        monkeypatch.setattr(f"minflinkd.ha.zookeeper.records.zlib.{work.__name__}", noted(work))
    data = secrets.token_bytes(INLINE // 2)
    await leader.write("large", data)
    assert await leader.read("large") == data
    assert [entry.size async for entry in leader.records.list("/jobs")] == [len(data)]
    assert used.keys() == {"compress", "decompress"}
    assert threading.get_ident() not in used.values()


@pytest.mark.parametrize("written", ["source", "target"])
async def test_a_write_during_a_rename_is_not_lost(
    leader: Daemon, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """The rename is refused, and may be asked for again."""
    await leader.write("source", b"one")
    await leader.write("target", b"old")
    transact = leader.records._fenced

    async def late(*operations: Any) -> None:
        monkeypatch.setattr(leader.records, "_fenced", transact)
        await leader.write(written, b"two")
        await transact(*operations)

    monkeypatch.setattr(leader.records, "_fenced", late)
    with pytest.raises(StorageUnavailable, match="changed while it was renamed"):
        await leader.records.rename("/jobs/source", "/jobs/target")
    assert await leader.read(written) == b"two"


async def test_a_listing_is_in_the_order_of_paths(leader: Daemon) -> None:
    """As every storage lists: "a.json" comes before what lies in "a", since "." sorts before "/"."""
    for name in ("b/2", "a/z", "a.json", "a-b", "b/10", "a/a/a"):
        await leader.write(name, b"x")
    found = [entry.path async for entry in leader.records.list("/jobs")]
    assert found == sorted(found)
    assert len(found) == 6


async def test_a_listing_takes_one_request_for_each_record(leader: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next leader lists all results before it leads: thousands may be left of short jobs (A12)."""
    for number in range(100):
        await leader.write(f"results/{number:03d}", b"x")
    call, requests, under_way, most = leader.session.call, 0, 0, 0

    async def counted(method: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal requests, under_way, most
        requests, under_way = requests + 1, under_way + 1
        most = max(most, under_way)
        try:
            return await call(method, *args, **kwargs)
        finally:
            under_way -= 1

    monkeypatch.setattr(leader.session, "call", counted)
    assert len([entry async for entry in leader.records.list("/jobs")]) == 100
    assert requests <= 105  # and the directories
    assert 10 < most <= 64


async def test_a_name_that_zookeeper_does_not_take_is_refused_before_it_is_asked(leader: Daemon) -> None:
    with pytest.raises(InvalidPath):
        await leader.write("\N{GRINNING FACE}", b"x")


@pytest.mark.parametrize("torn", [b"", b"x", b"-1", b" 7", b"1_0"])
async def test_a_torn_epoch_is_named_with_what_to_do(leader: Daemon, root: str, torn: bytes) -> None:
    """Nobody can guess it: files of earlier leaders would look like those of later ones (A11a, A12)."""
    await leader.session.call("set", f"{root}/epoch", torn)
    with pytest.raises(UnusableEpoch, match=f"{root}/epoch in ZooKeeper holds {torn!r}") as caught:
        await leader.ballot.record()
    assert "higher than every earlier epoch" in caught.value.hint
    assert (await leader.session.call("get", f"{root}/epoch"))[0] == torn
    await leader.session.call("set", f"{root}/epoch", b"41")
    assert await leader.ballot.record() == 42


async def test_epochs_grow_from_leader_to_leader(leader: Daemon) -> None:
    """No two leaderships have the same one (A11a)."""
    first = leader.epoch
    await leader.lead()
    assert leader.epoch == first + 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (zk.ThrottledOpError, "ThrottledOpError"),
        (zk.SessionMovedError, "SessionMovedError"),
        (zk.MarshallingError, "MarshallingError"),
        (zk.ConnectionLoss, "ConnectionLoss"),
    ],
)
async def test_an_answer_that_says_nothing_of_the_nodes_counts_as_none(
    leader: Daemon, monkeypatch: pytest.MonkeyPatch, error: type[Exception], words: str
) -> None:
    """A leader asks again, as after an answer that was lost, and a storage's caller gets a storage's error (A11)."""
    answers(monkeypatch, leader, error())
    with pytest.raises(ServiceUnavailable, match=words):
        await leader.ballot.confirm()
    with pytest.raises(StorageUnavailable, match=words):
        await leader.records.put("/jobs/a", b"data")
    with pytest.raises(StorageUnavailable, match=words):
        await leader.read("a")


async def test_a_quota_that_is_reached_is_told_as_such(
    leader: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is no matter of rights, and not one of servers that are away. Nothing was written (A12)."""
    with monkeypatch.context() as patch:
        answers(patch, leader, zk.QuotaExceededError(), to=("create",))
        with pytest.raises(ServiceFull, match="have reached their quota") as caught:
            await leader.ballot.join(ME)
        assert "setquota" in caught.value.hint
    await leader.lead()
    with monkeypatch.context() as patch:
        answers(patch, leader, zk.QuotaExceededError(), to=("transaction",))
        with pytest.raises(StorageFull, match="have reached their quota"):
            await leader.records.put("/jobs/a", secrets.token_bytes(2 * INLINE))
    assert files(tmp_path) == []


def answers(monkeypatch: pytest.MonkeyPatch, one: Daemon, error: Exception, *, to: Sequence[str] = ()) -> None:
    """Let ZooKeeper answer requests with this error: all of them, or those of some methods."""
    client = one.session._client

    def fails(*_: Any, **__: Any) -> Any:
        answer = client.handler.async_result()
        answer.set_exception(error)
        return answer

    for method in to or ("get", "exists", "get_children", "create", "set", "delete", "transaction"):
        if method == "transaction":
            monkeypatch.setattr(TransactionRequest, "commit_async", fails)
        else:
            monkeypatch.setattr(client, f"{method}_async", fails)


async def test_a_record_whose_directory_is_deleted_again_and_again_is_an_error_of_a_storage(
    leader: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stores it tries again (A11a)."""
    ensure_path = leader.session.call

    async def in_vain(method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "ensure_path":
            raise zk.NoNodeError
        return await ensure_path(method, *args, **kwargs)

    monkeypatch.setattr(leader.session, "call", in_vain)
    with pytest.raises(StorageUnavailable, match="/jobs/new/a: its node or its directory was deleted again and again"):
        await leader.records.put("/jobs/new/a", b"data")


async def test_the_second_waits_until_the_first_is_gone(
    leader: Daemon, zookeeper: ZooKeeper, root: str, tmp_path: Path
) -> None:
    """Claims have an order. Those who take part are shown in it (A11, A13)."""
    async with daemon(zookeeper, root, tmp_path) as other:
        await other.ballot.join(Member(name="host:2", url="http://127.0.0.1:8082"))
        assert [one.name for one in await other.ballot.members()] == ["host:1", "host:2"]
        turn = other.session.tasks.job("first", other.first())
        await other.session.call("exists", "/")
        assert not turn.done()
        await leader.ballot.leave()
        await until(lambda: turn.done())
        assert await other.ballot.record() == leader.epoch + 1


async def test_a_claim_whose_creation_was_not_answered_keeps_nobody_from_the_lead(
    zookeeper: ZooKeeper, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be there. The daemon deletes it before it makes the next one, and does not wait for itself (A11)."""
    async with daemon(zookeeper, root, tmp_path) as one:
        call = one.session.call

        async def answer_lost(method: str, *args: Any, **kwargs: Any) -> Any:
            answer = await call(method, *args, **kwargs)
            if method == "create":
                raise ServiceUnavailable("lost")
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(one.session, "call", answer_lost)
            with pytest.raises(ServiceUnavailable):
                await one.ballot.join(ME)
        assert len(await one.ballot.members()) == 1
        await one.lead()
        assert len(await one.ballot.members()) == 1


async def test_a_standby_that_waits_for_long_keeps_one_watch(
    leader: Daemon, zookeeper: ZooKeeper, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again and again, for weeks, since a watch can be lost. Watches must not pile up in kazoo."""
    monkeypatch.setattr(module, "_LOOK_AGAIN", 0.0)
    async with daemon(zookeeper, root, tmp_path) as other:
        await other.ballot.join(ME)
        before = await other.ballot.before()
        assert before is not None
        for _ in range(20):
            await other.ballot.change_of(before)
        watches = other.session._client._data_watchers
        assert [len(each) for each in watches.values()] == [1]
        await leader.ballot.leave()
        await until(lambda: not any(watches.values()))


@pytest.mark.parametrize("late", ["_delete", "_mine"])
async def test_a_claim_that_is_withdrawn_late_takes_no_later_one_with_it(
    leader: Daemon, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """The daemon may have joined again by then (A11)."""
    ballot = leader.ballot
    go_on, waits, answer = asyncio.Event(), asyncio.Event(), getattr(ballot, late)

    async def slow(*names: list[str]) -> Any:
        waits.set()
        await go_on.wait()
        return await answer(*names)

    with monkeypatch.context() as patch:
        patch.setattr(ballot, late, slow)
        leaving = leader.session.tasks.job("withdraw", ballot.withdraw())
        await waits.wait()
    await leader.lead()
    go_on.set()
    await until(lambda: leaving.done())
    await ballot.confirm()
    await ballot.withdraw()
    assert await ballot.members() == ()


async def test_a_claim_is_withdrawn_again_if_the_first_try_got_no_answer(
    leader: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is still there, and would keep others from the lead for as long as the session lasts (A11)."""
    call = leader.session.call

    async def away(*_: Any, **__: Any) -> Any:
        raise ServiceUnavailable("there is no connection")

    monkeypatch.setattr(leader.session, "call", away)
    with pytest.raises(ServiceUnavailable):
        await leader.ballot.withdraw()
    monkeypatch.setattr(leader.session, "call", call)
    assert len(await leader.ballot.members()) == 1
    await leader.ballot.withdraw()
    assert await leader.ballot.members() == ()
    await leader.ballot.withdraw()  # nothing is left


async def test_no_second_claim_of_a_daemon_is_left_when_it_joins_or_withdraws(
    leader: Daemon, zookeeper: ZooKeeper, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier creation was not answered, and a server that lags behind did not yet show its node (A11)."""
    async with daemon(zookeeper, root, tmp_path) as one:
        ballot, mine = one.ballot, one.ballot._mine

        async def once_more() -> None:
            place = f"{root}/election/{ballot._prefix}"
            await one.session.call("create", place, msgspec.json.encode(ME), ephemeral=True, sequence=True)

        async def lags() -> list[str]:
            monkeypatch.setattr(ballot, "_mine", mine)
            return []

        await once_more()
        monkeypatch.setattr(ballot, "_mine", lags)
        await ballot.join(ME)
        assert len(await mine()) == 1
        await once_more()
        await ballot.withdraw()
        assert await mine() == []
        assert len(await ballot.members()) == 1  # the other daemon's


async def test_another_programs_node_among_the_claims_is_passed_over(leader: Daemon, root: str) -> None:
    await leader.session.call("create", f"{root}/election/c-somebody")
    assert await leader.ballot.before() is None
    assert [one.name for one in await leader.ballot.members()] == ["host:1"]


async def test_a_password_keeps_others_out(zookeeper: ZooKeeper, root: str, tmp_path: Path) -> None:
    """The nodes of a daemon with a password can only be read and written with it."""
    async with daemon(zookeeper, root, tmp_path, credentials=Credentials("minflinkd", "secret")) as one:
        await one.lead()
        await one.write("a", b"data")
        async with daemon(zookeeper, root, tmp_path, credentials=Credentials("minflinkd", "wrong")) as other:
            with pytest.raises(ServiceRefused, match="refuses this daemon"):
                await other.ballot.join(ME)


@pytest.mark.parametrize(
    ("user", "words"),
    [
        (None, "which has no password"),
        (Credentials("minflinkd", "wrong"), "the user minflinkd"),
    ],
)
async def test_who_may_not_read_the_nodes_is_told_which_file_to_look_at(
    leader: Daemon, zookeeper: ZooKeeper, root: str, tmp_path: Path, user: Credentials | None, words: str
) -> None:
    """A node that belongs to a user is found at any of the questions."""
    acl = [make_digest_acl("minflinkd", "secret", all=True)]
    await leader.session.call("create", f"{root}/private", b"x", acl=acl)
    session = ZooKeeperSession(zookeeper.address, session_timeout=6, request_timeout=10, credentials=user)
    async with session:
        await until(lambda: session.connected)
        with pytest.raises(ServiceRefused, match=words) as caught:
            await session.call("get", f"{root}/private")
    assert "high-availability.zookeeper.client.digest-file" in caught.value.hint
    assert "a host whose daemon leads" in caught.value.hint


@pytest.fixture
async def sasl(tmp_path: Path) -> AsyncIterator[ZooKeeper]:
    if reason := SaslZooKeeper.missing():
        pytest.skip(reason)
    server = SaslZooKeeper(tmp_path / "sasl")
    try:
        await server.start()
        yield server
    finally:
        await server.kill()


async def test_a_server_that_asks_for_sasl_lets_in_who_knows_the_password(
    sasl: ZooKeeper, root: str, tmp_path: Path
) -> None:
    """The nodes belong to this user: another one, whom the server knows as well, can do nothing with them.

    Whoever has a wrong password, or shows none, is told so each time it asks; so the daemon goes on asking.
    """
    pytest.importorskip("puresasl", reason="SASL needs the package pure-sasl: pip install 'minflinkd[zookeeper-sasl]'")
    mine = Credentials("minflinkd", "secret", SASL_FILE)
    async with daemon(sasl, root, tmp_path, credentials=mine) as one:
        await one.lead()
        await one.write("a", b"data")
        assert await one.read("a") == b"data"
        async with daemon(sasl, root, tmp_path, credentials=Credentials("other", "other", SASL_FILE)) as other:
            with pytest.raises(ServiceRefused, match="refuses this daemon, the user other"):
                await other.ballot.join(ME)
        for wrong, words in (
            (Credentials("minflinkd", "wrong", SASL_FILE), "does not accept the user minflinkd and its password"),
            (Credentials("minflinkd", "secret"), "requires a password by SASL"),
            (None, "requires a password by SASL"),
        ):
            session = ZooKeeperSession(sasl.address, session_timeout=6, request_timeout=10, credentials=wrong)
            async with session:
                for _ in range(3):  # not only the first time
                    await until(lambda session=session, words=words: refused(session, words), words, timeout=10)  # type: ignore[misc]


async def refused(session: ZooKeeperSession, words: str) -> bool:
    try:
        await session.call("exists", "/")
    except ServiceRefused as error:
        return words in error.message
    except ServiceUnavailable:
        pass
    return False


async def test_a_session_timeout_that_the_server_does_not_grant_is_refused(zookeeper: ZooKeeper, root: str) -> None:
    """The lease of a leader would be longer than the session that protects it (A11)."""
    async with ZooKeeperSession(zookeeper.address, session_timeout=100, request_timeout=10) as session:
        await until(lambda: session.connected)
        with pytest.raises(ServiceRefused, match="grants a session timeout of 60 s instead of 100 s"):
            await ZooKeeperBallot(session, root).join(ME)


async def test_a_session_timeout_that_the_server_raises_is_logged(zookeeper: ZooKeeper) -> None:
    """The next leader waits longer than the operator has chosen (A16)."""
    with structlog.testing.capture_logs() as logs:
        async with ZooKeeperSession(zookeeper.address, session_timeout=0.3, request_timeout=10) as session:
            await until(lambda: session.connected)
    (said,) = [line for line in logs if "longer session timeout" in line["event"]]
    assert (said["asked"], round(said["granted"], 3)) == (0.3, 0.4)
    assert "minSessionTimeout" in said["hint"]


async def test_without_a_server_every_question_says_so(tmp_path: Path) -> None:
    """It is asked again; nothing hangs."""
    async with ZooKeeperSession("127.0.0.1:9", session_timeout=6, request_timeout=1) as session:
        with pytest.raises(ServiceUnavailable, match="there is no connection"):
            await ZooKeeperBallot(session, "/minflinkd/none").join(ME)


async def test_a_server_that_says_nothing_is_given_up_soon() -> None:
    """It is tried again, or another one, long before the session would end (A11)."""
    taken: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        async with ZooKeeperSession(f"127.0.0.1:{port}", session_timeout=1000, request_timeout=0.2):
            await until(lambda: len(taken) >= 3, "the server was asked for a third time", timeout=20)
    for writer in taken:
        writer.close()
