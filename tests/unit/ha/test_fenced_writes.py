"""The check of a recorded history finds each way in which two leaders' writes could both count (A11a, A17)."""

from __future__ import annotations

import pytest

from tests.fenced_writes import history
from tests.servers.zookeeper_log import Operation, Transaction

ROOT = "/minflinkd/cluster"
A, B = "c-aa-0000000001", "c-bb-0000000002"
JOB = f"{ROOT}/records/jobs/1.json"


def claims(name: str, session: int) -> Transaction:
    return Transaction(0, session, (Operation("create", f"{ROOT}/election/{name}", b"{}"),))


def fenced(name: str, session: int, *operations: Operation) -> Transaction:
    return Transaction(0, session, (Operation("check", f"{ROOT}/election/{name}"), *operations), several=True)


def leads(name: str, session: int, epoch: int) -> Transaction:
    return fenced(name, session, Operation("set", f"{ROOT}/epoch", str(epoch).encode()))


def writes(name: str, session: int) -> Transaction:
    return fenced(name, session, Operation("set", JOB, b"i"))


def ends(session: int) -> Transaction:
    return Transaction(0, session, (), closed=True)


BEFORE = (claims(A, 1), claims(B, 2), leads(A, 1, 1), writes(A, 1))


def test_one_leader_after_the_other_is_as_it_should_be() -> None:
    """The next one begins after the claim of the one before has gone. Directories and other clusters do not count."""
    found = history(
        ROOT,
        [
            *BEFORE,
            Transaction(0, 1, (Operation("create", f"{ROOT}/records/jobs"),)),
            Transaction(0, 7, (Operation("set", "/minflinkd/other/records/jobs/1.json", b"i"),)),
            ends(1),
            leads(B, 2, 2),
            writes(B, 2),
        ],
    )
    assert (found.faults, found.leaders, found.written) == ([], [A, B], {A: 1, B: 1})


@pytest.mark.parametrize(
    ("what", "said"),
    [
        pytest.param([Transaction(0, 1, (Operation("set", JOB, b"i"),))], "without a check", id="no check"),
        pytest.param(
            [Transaction(0, 1, (Operation("set", JOB, b"i"),), several=True)], "without a check", id="several, no check"
        ),
        pytest.param([ends(1), leads(B, 2, 2), writes(A, 1)], "does not exist", id="after its claim has gone"),
        pytest.param([writes(B, 2)], "is not the first one", id="a standby"),
        pytest.param([writes(A, 2)], "of another daemon", id="with the claim of another daemon"),
        pytest.param([ends(1), writes(B, 2)], "has not the last epoch", id="before its epoch is recorded"),
        pytest.param([ends(1), leads(B, 2, 1)], "the epoch 1 comes after 1", id="an epoch twice"),
    ],
)
def test_a_write_that_did_not_come_from_the_one_leader_is_found(what: list[Transaction], said: str) -> None:
    """Each fault names the transaction, and what it has written."""
    faults = history(ROOT, [*BEFORE, *what]).faults
    assert any(said in fault for fault in faults), faults
    assert all(JOB in fault or f"{ROOT}/epoch" in fault for fault in faults)
