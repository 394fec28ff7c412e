"""Tokens are proved in a thread, one at a time, and remembered for a short time (E41)."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from minflinkd.rest.errors import Overloaded
from minflinkd.rest.identity import proving
from minflinkd.rest.identity.proving import ExpiredToken, TokenProver, Unauthenticated, WrongToken
from minflinkd.rest.identity.roles import Forbidden, Identity, Role, require_cluster, require_job, require_role
from minflinkd.rest.identity.sessions import CODE_LIFETIME, LIFETIME, SecretBook, Sessions
from minflinkd.rest.identity.tokens import Token, TokenRecord, hash_of, matches
from tests.unit.rest.test_shared import StandingClock
from tests.waiting import until

CHEAP = (1 << 4, 8, 1)


class Hashing:
    """Counts the hashes that are computed, and computes them when the test lets it."""

    def __init__(self) -> None:
        self.count = 0
        self.free = threading.Event()
        self.free.set()

    def matches(self, secret: str, hashed: str) -> bool:
        self.count += 1
        assert self.free.wait(10)
        return matches(secret, hashed)


@pytest.fixture
def hashing(monkeypatch: pytest.MonkeyPatch) -> Hashing:
    hashing = Hashing()
    monkeypatch.setattr(proving, "matches", hashing.matches)
    return hashing


def record(token: Token, name: str = "ci", role: str = "submit", expires: datetime | None = None) -> TokenRecord:
    return TokenRecord(name=name, id=token.id, role=role, hash=hash_of(token.secret, b"s" * 16, CHEAP), expires=expires)


OWN, CI = Token.new(), Token.new()


def prover(*records: TokenRecord, clock: StandingClock | None = None) -> TokenProver:
    return TokenProver(OWN, records, clock or StandingClock(), hint="ask the operator")


async def test_a_token_is_known_by_its_name_and_role(hashing: Hashing) -> None:
    found = await prover(record(CI)).prove(CI.text)
    assert (found.name, found.role) == ("ci", Role.SUBMIT)
    own = await prover().prove(OWN.text)
    assert (own.name, own.role) == ("daemon", Role.ADMIN)


async def test_a_token_that_was_proved_costs_no_other_hash_for_a_minute(hashing: Hashing) -> None:
    """The slow hash does not slow down each request (E41)."""
    clock = StandingClock()
    known = prover(record(CI), clock=clock)
    for _ in range(3):
        await known.prove(CI.text)
    assert hashing.count == 1
    clock.now += proving.REMEMBERED
    await known.prove(CI.text)
    assert hashing.count == 2


async def test_requests_with_one_new_token_share_its_hash(hashing: Hashing) -> None:
    known = prover(record(CI))
    await asyncio.gather(*(known.prove(CI.text) for _ in range(20)))
    assert hashing.count == 1


WRONG = {
    "another token": Token.new().text,
    "another secret": Token(OWN.id, CI.secret).text,
    "no token": "hunter2",
    "nothing": "",
    "a space": f"{CI.text} ",
    "capitals": CI.text.upper(),
}


@pytest.mark.parametrize("name", WRONG)
async def test_whoever_knows_no_id_is_refused_without_a_hash(hashing: Hashing, name: str) -> None:
    """A refused request costs less than it cost to send (E45)."""
    wrong = WRONG[name]
    with pytest.raises(WrongToken) as refused:
        await prover(record(CI)).prove(wrong)
    assert hashing.count == 0
    assert refused.value.info().hint == "ask the operator"
    assert wrong not in refused.value.message or not wrong


async def test_a_wrong_secret_of_a_known_id_is_refused_each_time(hashing: Hashing) -> None:
    known = prover(record(CI))
    for _ in range(2):
        with pytest.raises(WrongToken):
            await known.prove(Token(CI.id, OWN.secret).text)
    assert hashing.count == 2


async def test_more_proofs_than_may_wait_are_told_to_come_again(hashing: Hashing) -> None:
    """They would take a core for seconds (E45)."""
    hashing.free.clear()
    known = prover(record(CI))
    wrong = [asyncio.create_task(known.prove(Token(CI.id, OWN.secret).text)) for _ in range(proving.MOST_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await known.prove(CI.text)
    hashing.free.set()
    assert all(isinstance(each, WrongToken) for each in await asyncio.gather(*wrong, return_exceptions=True))
    assert (await known.prove(CI.text)).name == "ci"


async def test_a_revoked_token_ends_at_once_although_it_is_remembered(hashing: Hashing) -> None:
    known = prover(record(CI))
    await known.prove(CI.text)
    known.replace(())
    with pytest.raises(WrongToken):
        await known.prove(CI.text)
    assert known.identity(CI.id) is None


async def test_a_token_whose_hash_was_replaced_ends_although_it_is_remembered(hashing: Hashing) -> None:
    known = prover(record(CI))
    await known.prove(CI.text)
    known.replace((record(Token(CI.id, OWN.secret)),))
    with pytest.raises(WrongToken):
        await known.prove(CI.text)


async def test_a_token_that_is_revoked_while_it_is_proved_is_refused(hashing: Hashing) -> None:
    hashing.free.clear()
    known = prover(record(CI))
    proof = asyncio.create_task(known.prove(CI.text))
    await until(lambda: hashing.count, "the thread computes the hash")
    known.replace(())
    hashing.free.set()
    with pytest.raises(WrongToken):
        await proof


async def test_a_token_ends_with_its_expiry_although_it_is_remembered(hashing: Hashing) -> None:
    clock = StandingClock()
    known = prover(record(CI, expires=datetime.fromtimestamp(10, UTC)), clock=clock)
    await known.prove(CI.text)
    clock.now = 10.0
    with pytest.raises(ExpiredToken, match="ci has expired"):
        await known.prove(CI.text)


async def test_what_is_remembered_is_bounded(hashing: Hashing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "MOST_REMEMBERED", 2)
    tokens = [Token.new() for _ in range(3)]
    known = prover(*(record(token, name=token.id) for token in tokens))
    for token in tokens:
        await known.prove(token.text)
    await known.prove(tokens[2].text)
    assert hashing.count == 3
    await known.prove(tokens[0].text)
    assert hashing.count == 4


def test_all_refusals_of_this_kind_are_one_error_for_a_client() -> None:
    """A client cannot learn whether an id exists from the code (E41)."""
    assert {each.code for each in (Unauthenticated, WrongToken, ExpiredToken)} == {"unauthenticated"}


def test_each_role_includes_those_before_it() -> None:
    roles = [role for role in Role if role is not Role.ANYBODY]
    for has in roles:
        for needs in roles:
            who = Identity(name="x", role=has)
            if has >= needs:
                require_role(who, needs)
            else:
                with pytest.raises(Forbidden, match=f"needs the role {needs}, and x has {has}"):
                    require_role(who, needs)


def test_a_limited_token_reaches_jobs_by_their_names_and_changes_nothing_else() -> None:
    limited = Identity(name="x", role=Role.ADMIN, jobs=("etl-*", "daily"))
    for name in ("etl-1", "etl-", "daily"):
        require_job(limited, name)
    for name in ("etl", "daily2", "ETL-1", "", "my-etl-1"):
        with pytest.raises(Forbidden):
            require_job(limited, name)
    with pytest.raises(Forbidden, match="POST /cluster/handover is not about one of them"):
        require_cluster(limited, "POST /cluster/handover")
    require_cluster(Identity(name="y", role=Role.VIEW), "anything")


WHO = Identity(name="x", role=Role.VIEW)


def test_a_link_logs_in_once_and_for_a_minute() -> None:
    """As Jupyter's links do (E40)."""
    clock = StandingClock()
    codes = Sessions(clock).codes
    code = codes.add(WHO)
    assert (codes.take(code), codes.take(code)) == (WHO, None)
    late = codes.add(WHO)
    clock.now += CODE_LIFETIME
    assert codes.take(late) is None


def test_a_session_ends_after_half_a_day_and_cannot_be_guessed() -> None:
    clock = StandingClock()
    sessions = Sessions(clock).open
    cookie = sessions.add(WHO)
    assert sessions.find(cookie) == WHO
    assert sessions.find(cookie[:-1]) is None
    clock.now += LIFETIME
    assert sessions.find(cookie) is None


def test_the_oldest_of_too_many_sessions_ends() -> None:
    """What clients can make the daemon keep is bounded (E45)."""
    book = SecretBook[Identity](StandingClock(), lifetime=10.0, most=2)
    first, second, third = (book.add(WHO) for _ in range(3))
    assert [book.find(each) is not None for each in (first, second, third)] == [False, True, True]
