"""For every unit test: no error of an event loop is lost, no process is started, and no port is opened."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from tests.loop_errors import no_unhandled_exception

__all__ = ["alone_in_its_process", "no_unhandled_exception"]

# What every way to a server or to another process goes through. A pair of sockets, such as an event loop has, does not.
OUTSIDE = (
    (socket.socket, "bind"),
    (socket.socket, "connect"),
    (socket.socket, "connect_ex"),
    (subprocess.Popen, "__init__"),
    (os, "fork"),
    (os, "posix_spawn"),
    (os, "system"),
)


@contextmanager
def nothing_outside() -> Iterator[None]:
    """Refuse sockets and processes: tests with these belong in `tests/component`.

    The block fails even if the code under test takes the refusal for an ordinary error.
    """
    used: list[str] = []

    def refuse(name: str) -> Any:
        def refused(*_: object, **__: object) -> NoReturn:
            used.append(name)
            raise AssertionError(f"a unit test uses {name}: move it to tests/component")

        return refused

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in OUTSIDE:
            patch.setattr(owner, name, refuse(f"{owner.__name__}.{name}"))
        yield
    assert not used, f"this test belongs in tests/component, because it uses {', '.join(sorted(set(used)))}"


@pytest.fixture(autouse=True)
def alone_in_its_process() -> Iterator[None]:
    with nothing_outside():
        yield
