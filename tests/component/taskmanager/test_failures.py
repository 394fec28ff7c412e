"""A refused connection: of the session's JVM, or of user code."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters

from minflinkd.runtime.errors import Consequence, Kind
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.taskmanager.session.spark.failures import build_failure
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
