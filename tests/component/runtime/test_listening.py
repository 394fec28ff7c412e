"""Ports are taken before anything is started, and errors say who has a port that is taken."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence

import pytest

from minflinkd.runtime.listening import Place, PortTaken, UnusableAddress, bind, close, command_name, holder_of


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        yield int(held.getsockname()[1])


def place(*ports: int, host: str = "127.0.0.1") -> Place:
    return Place(host, ports, "rest.bind-address", "rest.port")


async def test_a_taken_port_is_named_with_its_option_and_who_has_it(taken: int) -> None:
    """[Errno 98] alone would say nothing (issue 15, 9)."""
    with pytest.raises(PortTaken) as refused:
        await bind(place(taken))
    assert f"port {taken} of 127.0.0.1 is taken (rest.port) by " in refused.value.message
    assert f"(pid {os.getpid()})" in refused.value.message
    assert "set rest.port to another port" in refused.value.hint


async def test_the_next_port_of_a_range_is_taken_instead(taken: int) -> None:
    bound = await bind(place(taken, 0))
    assert bound[0].getsockname()[1] != taken
    close(bound)


async def test_a_range_without_a_free_port_is_named_as_a_whole() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = sorted(held.getsockname()[1] for held in (one, other))
        with pytest.raises(PortTaken, match=f"each of the ports {ports[0]}-{ports[1]}"):
            await bind(place(*ports))


@pytest.mark.parametrize(
    ("host", "why"), [("203.0.113.7", "Cannot assign"), ("no.such.host.invalid", "not an address")]
)
async def test_an_address_of_another_machine_is_refused_by_its_option(host: str, why: str) -> None:
    with pytest.raises(UnusableAddress, match=r"rest\.bind-address") as refused:
        await bind(place(0, host=host))
    assert why in refused.value.message


async def test_a_name_with_several_addresses_has_one_port_on_all_of_them() -> None:
    """`localhost` is 127.0.0.1 and, with IPv6, ::1."""
    bound = await bind(place(0, host="localhost"))
    assert len({each.getsockname()[1] for each in bound}) == 1
    close(bound)


async def test_a_port_that_is_held_refuses_clients_until_it_is_served() -> None:
    bound = await bind(place(0))
    with pytest.raises(ConnectionRefusedError), socket.create_connection(bound[0].getsockname(), timeout=5):
        pass
    close(bound)


async def test_a_port_can_be_bound_again_at_once_after_it_was_any_free_one() -> None:
    """A daemon that starts again finds connections of the one before that are not gone yet."""
    (bound,) = await bind(place(0))
    port = bound.getsockname()[1]
    bound.listen()
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        accepted, _ = bound.accept()
        accepted.close()  # first, so it is this side whose port waits
        assert client.recv(1) == b""
    bound.close()
    close(await bind(place(port)))


def test_nobody_holds_a_port_on_which_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert holder_of("127.0.0.1", bound.getsockname()[1]) is None


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["/opt/venv/bin/python", "/opt/venv/bin/minflinkd", "serve", "--set", "s3.secret-key=x"], "minflinkd serve"),
        (["python3.11", "-m", "minflinkd", "serve"], "minflinkd serve"),
        (["/usr/bin/python3", "-m", "http.server", "8081"], "python -m http.server"),
        (["python3", "-c", "import socket"], "python"),
        (["/usr/sbin/nginx", "-g", "daemon off;"], "nginx"),
        (["postgres", "password=secret"], "postgres"),
        ([], ""),
    ],
)
def test_a_command_is_named_without_what_may_be_secret(argv: Sequence[str], shown: str) -> None:
    assert command_name(argv) == shown
