"""How an exception on the Python side of a session is classified."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

from minflinkd.runtime.errors import Consequence, Kind
from minflinkd.storage.interface import StorageUnavailable
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.taskmanager.session.spark.failures import batch_failure, build_failure, input_failure
from tests.cluster import free_port


@pytest.fixture
def dead_jvm() -> Iterator[ClientServer]:
    """Return the Python side of a session whose JVM is gone."""
    gateway = ClientServer(JavaParameters(port=free_port()), PythonParameters(port=0))
    yield gateway
    gateway.shutdown()


def test_a_jvm_that_dies_while_a_task_is_built_is_a_lost_session(dead_jvm: ClientServer) -> None:
    """A restart on another session repairs it. Counted as a fault of user code, it would end the job (C10a, R16)."""
    with pytest.raises(ConnectionRefusedError) as raised:
        dead_jvm.jvm.java.lang.System.currentTimeMillis()
    info = build_failure(raised.value)
    assert (info.code, info.consequence) == (SessionLost.code, Consequence.RETRYABLE)
    assert info.kind is Kind.SESSION_LOST


def test_a_refused_connection_of_user_code_is_its_own() -> None:
    """The same exception from elsewhere says nothing about the session (C10a)."""
    with pytest.raises(ConnectionRefusedError) as raised:
        socket.create_connection(("127.0.0.1", free_port()), timeout=5)
    info = build_failure(raised.value)
    assert (info.code, info.consequence, info.kind) == ("user-code", Consequence.FATAL, Kind.JOB)


def test_a_failure_in_a_micro_batch_may_be_due_to_a_record() -> None:
    """Only such failures come with the files and offsets that were read, and only such are the job's own."""
    assert batch_failure(ValueError("seven is poison")).kind is Kind.JOB
    assert batch_failure(StorageUnavailable("away")).kind is Kind.STORAGE
    assert input_failure(OSError("away")).kind is Kind.JOB
