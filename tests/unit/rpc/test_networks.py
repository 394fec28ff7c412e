"""The network inside one process, and the faulty network for tests."""

from __future__ import annotations

import asyncio
import random

import pytest
from structlog.testing import capture_logs

from minflinkd.rpc.faulty import Faults, FaultyWire
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.messages import (
    CancelTask,
    Done,
    FindSession,
    Message,
    Registered,
    RegisterTaskManager,
    SessionFound,
    TaskManagerLost,
)
from minflinkd.rpc.network import Address, Fenced, Mailbox, RpcTimeout, Unreachable
from minflinkd.runtime.errors import Conflict, RemoteError
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId, ResourceId

pytestmark = pytest.mark.looptime
PARTY = Address("party")
CANCEL = CancelTask(job_id=JobId("1" * 32), attempt_id=AttemptId("2" * 32))
LOST = TaskManagerLost(resource_id=ResourceId("tm-1"), reason="gone")
OLD, NEW = LeaderId("old"), LeaderId("new")


class Party:
    def __init__(self, *, fence: LeaderId | None = None) -> None:
        self.mailbox = Mailbox(PARTY, fence=fence)
        self.got: list[tuple[float, str]] = []
        self.mailbox.on(CancelTask, self._cancel)
        self.mailbox.on(FindSession, self._find, fenced=False)
        self.mailbox.on_notice(TaskManagerLost, self._lost)

    def _note(self, message: Message) -> None:
        self.got.append((round(asyncio.get_running_loop().time(), 3), type(message).__name__))

    async def _cancel(self, request: CancelTask) -> Done:
        self._note(request)
        return Done()

    async def _find(self, request: FindSession) -> SessionFound:
        self._note(request)
        return SessionFound(refused="full")

    async def _lost(self, notice: TaskManagerLost) -> None:
        self._note(notice)


# --- fencing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [OLD, None])
async def test_a_leader_refuses_every_token_but_its_own_before_a_handler_sees_the_message(
    token: LeaderId | None,
) -> None:
    """R1."""
    network, party = LocalNetwork(), Party(fence=NEW)
    network.attach(party.mailbox)
    with pytest.raises(Fenced):
        await network.ask(PARTY, CANCEL, timeout=1, fence=token)
    with capture_logs():
        network.tell(PARTY, LOST, fence=token)
        await asyncio.sleep(0.1)
    assert (party.got, network.figures.fenced) == ([], {"CancelTask": 1, "TaskManagerLost": 1})
    assert await network.ask(PARTY, CANCEL, timeout=1, fence=NEW) == Done()
    assert network.figures.outcomes == {("CancelTask", "fenced"): 1, ("CancelTask", "ok"): 1}
    await network.aclose()


async def test_a_request_is_in_flight_and_in_its_mailbox_until_it_is_answered() -> None:
    """Also if it is given up, or nobody is there: an operator would look for it in vain (E17)."""
    network, mailbox, answer = LocalNetwork(), Mailbox(PARTY), asyncio.Event()

    async def cancel(_: CancelTask) -> Done:
        await answer.wait()
        return Done()

    mailbox.on(CancelTask, cancel)
    network.attach(mailbox)
    asked = [asyncio.ensure_future(network.ask(PARTY, CANCEL, timeout=seconds)) for seconds in (5, 60, 60)]
    await asyncio.sleep(1)
    figures = network.figures
    assert len(figures.in_flight["CancelTask"]) == len(figures.mailboxes[PARTY]) == 3
    asked[1].cancel()
    await asyncio.sleep(5)
    assert len(figures.in_flight["CancelTask"]) == len(figures.mailboxes[PARTY]) == 1
    answer.set()
    await asyncio.wait(asked)
    assert len(figures.in_flight["CancelTask"]) == len(figures.mailboxes[PARTY]) == 0
    assert figures.outcomes == {("CancelTask", "rpc-timeout"): 1, ("CancelTask", "ok"): 1}
    network.detach(mailbox)
    assert figures.mailboxes == {}
    await network.aclose()


async def test_a_refusal_is_an_answer() -> None:
    """Unanswered is only what leaves open whether the request was carried out."""
    network, party = LocalNetwork(), Party(fence=NEW)
    network.attach(party.mailbox)
    with pytest.raises(Fenced):
        await network.ask(PARTY, CANCEL, timeout=1, fence=OLD)
    with pytest.raises(Unreachable):
        await network.ask(Address("nobody"), CANCEL, timeout=1)
    found = network.figures.lately()["CancelTask"]
    assert (found.count, found.unanswered, found.outcomes) == (2, 1, {"fenced": 1, "unreachable": 1})
    await network.aclose()


class Elsewhere:
    """A route to parties in another process."""

    def __init__(self) -> None:
        self.got: list[Message] = []

    async def ask(self, target: Address, request: Message, *, timeout: float, fence: LeaderId | None) -> Done:
        self.got.append(request)
        return Done()

    def tell(self, target: Address, notice: Message, *, fence: LeaderId | None) -> None:
        self.got.append(notice)


async def test_a_daemon_that_may_not_act_sends_nothing_to_other_processes() -> None:
    """Its parties reach one another all the same, and TaskManagers again once it is certain that it leads (A11)."""
    certain = False
    network, party, elsewhere = LocalNetwork(leads=lambda: certain), Party(), Elsewhere()
    network.attach(party.mailbox)
    network.default_route(elsewhere)  # type: ignore[arg-type]
    with pytest.raises(Unreachable, match="not certain"):
        await network.ask(Address("taskmanager/tm-1"), CANCEL, timeout=1)
    network.tell(Address("taskmanager/tm-1"), LOST)
    assert elsewhere.got == []
    assert await network.ask(PARTY, CANCEL, timeout=1) == Done()
    certain = True
    await network.ask(Address("taskmanager/tm-1"), CANCEL, timeout=1)
    network.tell(Address("taskmanager/tm-1"), LOST)
    assert elsewhere.got == [CANCEL, LOST]
    await network.aclose()


async def test_what_is_said_before_the_leader_is_known_needs_no_token() -> None:
    """A registration cannot know the leader yet (m4)."""
    network, party = LocalNetwork(), Party(fence=NEW)
    network.attach(party.mailbox)
    assert (await network.ask(PARTY, FindSession(), timeout=1)).refused == "full"


async def test_a_party_with_several_leaders_says_itself_whose_token_counts() -> None:
    """A TaskManager admits its ResourceManager's token for some messages, and a JobMaster's for others (R1)."""
    asked: list[tuple[str, LeaderId | None]] = []

    def admits(message: Message, fence: LeaderId | None) -> bool:
        asked.append((type(message).__name__, fence))
        return fence == NEW

    async def cancel(request: CancelTask) -> Done:
        return Done()

    network, mailbox = LocalNetwork(), Mailbox(PARTY, admits=admits)
    mailbox.on(CancelTask, cancel)
    network.attach(mailbox)
    with pytest.raises(Fenced):
        await network.ask(PARTY, CANCEL, timeout=1, fence=OLD)
    assert await network.ask(PARTY, CANCEL, timeout=1, fence=NEW) == Done()
    assert asked == [("CancelTask", OLD), ("CancelTask", NEW)]


# --- inside one process ------------------------------------------------------------------------------------------


async def test_nobody_there_is_unreachable_and_a_notice_to_nobody_is_lost() -> None:
    network = LocalNetwork()
    with pytest.raises(Unreachable, match="nobody answers at party"):
        await network.ask(PARTY, CANCEL, timeout=1)
    network.tell(PARTY, LOST)
    await network.aclose()


async def test_errors_look_as_if_they_had_crossed_a_wire() -> None:
    """If a party moves to another process, nothing changes for its callers (A2)."""
    network, mailbox = LocalNetwork(), Mailbox(PARTY)

    async def cancel(request: CancelTask) -> Done:
        raise Conflict("not now", hint="later")

    async def register(request: RegisterTaskManager) -> Registered:
        raise ZeroDivisionError("x")

    mailbox.on(CancelTask, cancel)
    mailbox.on(FindSession, register)  # type: ignore[arg-type]
    network.attach(mailbox)
    with pytest.raises(RemoteError) as refused:
        await network.ask(PARTY, CANCEL, timeout=1)
    assert (refused.value.info().code, refused.value.info().hint) == ("conflict", "later")
    with capture_logs(), pytest.raises(RemoteError) as failed:
        await network.ask(PARTY, FindSession(), timeout=1)
    assert failed.value.info().code == "internal"
    assert network.figures.outcomes == {("CancelTask", "conflict"): 1, ("FindSession", "internal"): 1}


async def test_a_slow_handler_is_a_timeout() -> None:
    """A5."""
    network, mailbox = LocalNetwork(), Mailbox(PARTY)

    async def cancel(request: CancelTask) -> Done:
        await asyncio.sleep(100)
        return Done()

    mailbox.on(CancelTask, cancel)
    network.attach(mailbox)
    began = asyncio.get_running_loop().time()
    with pytest.raises(RpcTimeout):
        await network.ask(PARTY, CANCEL, timeout=3)
    assert asyncio.get_running_loop().time() - began == pytest.approx(3)


async def test_a_successor_takes_an_address_and_the_predecessor_cannot_give_it_away() -> None:
    network, first, second = LocalNetwork(), Party(), Party()
    network.attach(first.mailbox)
    network.attach(second.mailbox)
    network.detach(first.mailbox)
    await network.ask(PARTY, CANCEL, timeout=1)
    assert (len(first.got), len(second.got)) == (0, 1)
    network.detach(second.mailbox)
    assert network.mailbox(PARTY) is None


async def test_a_notice_after_the_end_is_lost_and_raises_nothing() -> None:
    """`Network.tell` never raises, not even while the process shuts down."""
    network, party = LocalNetwork(), Party()
    network.attach(party.mailbox)
    await network.aclose()
    network.tell(PARTY, LOST)
    await asyncio.sleep(1)
    assert party.got == []


# --- the faulty twin ---------------------------------------------------------------------------------------------


async def test_a_dropped_request_is_a_timeout_and_reaches_nobody() -> None:
    """R30."""
    wire, party = FaultyWire(random.Random(1), Faults(drop=1.0)), Party()
    wire.party("a").attach(party.mailbox)
    with pytest.raises(RpcTimeout):
        await wire.party("b").ask(PARTY, CANCEL, timeout=2)
    wire.party("b").tell(PARTY, LOST)
    await asyncio.sleep(10)
    assert party.got == []
    assert [line.split(maxsplit=1)[1] for line in wire.journal] == [
        "b -> party CancelTask lost",
        "b -> party TaskManagerLost lost",
    ]
    await wire.aclose()


async def test_a_lost_answer_leaves_the_outcome_unknown() -> None:
    """The request was carried out nevertheless (R30)."""
    wire, party = FaultyWire(random.Random(1)), Party()
    wire.faults.drop_if = lambda source, target, message: source == PARTY
    wire.party("a").attach(party.mailbox)
    with pytest.raises(RpcTimeout):
        await wire.party("b").ask(PARTY, CANCEL, timeout=2)
    assert [name for _, name in party.got] == ["CancelTask"]
    await wire.aclose()


async def test_a_doubled_message_comes_twice_and_is_answered_once() -> None:
    """R30."""
    wire, party = FaultyWire(random.Random(1), Faults(double=1.0)), Party()
    wire.party("a").attach(party.mailbox)
    assert await wire.party("b").ask(PARTY, CANCEL, timeout=2) == Done()
    wire.party("b").tell(PARTY, LOST)
    await asyncio.sleep(1)
    assert [name for _, name in party.got] == ["CancelTask"] * 2 + ["TaskManagerLost"] * 2
    await wire.aclose()


async def test_delays_reorder_messages_within_their_bounds() -> None:
    """R30."""
    wire, party = FaultyWire(random.Random(1), Faults(least_delay=1.0, most_delay=3.0)), Party()
    wire.party("a").attach(party.mailbox)
    network, began = wire.party("b"), asyncio.get_running_loop().time()
    for i in range(20):
        network.tell(PARTY, LOST)
        wire.tasks.job(f"ask {i}", _ask(network))
    await asyncio.sleep(10)
    times = [at - began for at, _ in party.got]
    assert len(times) == 40
    assert 1.0 <= min(times) <= max(times) <= 3.0
    names = [name for _, name in party.got]
    assert names != ["TaskManagerLost", "CancelTask"] * 20
    await wire.aclose()


async def _ask(network: object) -> None:
    await network.ask(PARTY, CANCEL, timeout=20)  # type: ignore[attr-defined]


async def test_a_cut_keeps_two_parties_apart_and_heals() -> None:
    """R15, R30."""
    wire, party = FaultyWire(random.Random(1)), Party()
    wire.party("a").attach(party.mailbox)
    wire.faults.cut.add(frozenset(("b", PARTY)))
    with pytest.raises(RpcTimeout):
        await wire.party("b").ask(PARTY, CANCEL, timeout=1)
    assert await wire.party("c").ask(PARTY, CANCEL, timeout=1) == Done()
    wire.faults.cut.clear()
    assert await wire.party("b").ask(PARTY, CANCEL, timeout=1) == Done()
    await wire.aclose()


async def test_a_party_that_is_not_there_is_silence_as_over_a_wire() -> None:
    wire = FaultyWire(random.Random(1))
    with pytest.raises(RpcTimeout):
        await wire.party("b").ask(PARTY, CANCEL, timeout=1)
    await wire.aclose()


async def _story(seed: int) -> tuple[list[str], list[float]]:
    wire, party = FaultyWire(random.Random(seed), Faults(drop=0.3, double=0.3, most_delay=0.5)), Party()
    wire.party("a").attach(party.mailbox)
    network, began = wire.party("b"), asyncio.get_running_loop().time()
    outcomes = []
    for _ in range(30):
        try:
            await network.ask(PARTY, CANCEL, timeout=0.7)
            outcomes.append("ok")
        except RpcTimeout:
            outcomes.append("unknown")
        network.tell(PARTY, LOST)
    await asyncio.sleep(2)
    await wire.aclose()
    return outcomes + [name for _, name in party.got], [at - began for at, _ in party.got]


async def test_a_seed_repeats_a_run_exactly() -> None:
    """A failing seed reproduces the run (R30)."""
    what, when = await _story(5)
    again, when_again = await _story(5)
    assert again == what
    assert when_again == pytest.approx(when, abs=0.01)
    assert (await _story(6))[0] != what
