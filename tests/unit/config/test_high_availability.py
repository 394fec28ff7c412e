"""Options of several daemons that cannot hold together (A10, A11)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minflinkd.config import ConfigError, Fault, load_config
from minflinkd.config.load import parse_config
from minflinkd.config.values import socket_addresses

POSSIBLE = {
    "high-availability.type": "zookeeper",
    "high-availability.zookeeper.quorum": "zk1:2181,zk2:2181,zk3:2181",
    "high-availability.storageDir": "s3://bucket/ha",
    "execution.checkpointing.dir": "s3://bucket/checkpoints",
    "security.secret-file": "/etc/minflinkd/secret",
    "jobmanager.rpc.port": "6123",
    "jobmanager.rpc.addresses": "a:6123,b:6123",
}
SESSION = "high-availability.zookeeper.client.session-timeout"
RENEWAL = "high-availability.renewal-interval"


def faults(options: dict[str, str]) -> tuple[Fault, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(None, {}, POSSIBLE | options)
    return caught.value.faults


def test_the_examples_of_the_documentation_are_accepted() -> None:
    page = (Path(__file__).parents[3] / "docs" / "high-availability.md").read_text("utf-8")
    common, own, on_one_machine = re.findall(r"^```\n(.*?)^```", page, re.M | re.S)
    for port in ("6123", "6133"):
        parse_config(on_one_machine, {}, {"rest.port": "8081", "jobmanager.rpc.port": port})
    config = parse_config(common + own, {}, {})
    assert (config.ha.lease, config.rest.address) == (pytest.approx(5.1), "a.example")


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("high-availability.zookeeper.quorum", "says where ZooKeeper is"),
        ("high-availability.storageDir", "names a storage that all daemons reach"),
        ("execution.checkpointing.dir", "names a storage that all daemons reach"),
        ("security.secret-file", "names a file with the same secret on every host"),
        ("jobmanager.rpc.addresses", "names all daemons"),
    ],
)
def test_an_option_that_an_election_needs_is_missed_with_its_reason(key: str, why: str) -> None:
    """Otherwise each daemon would lead for itself, or the next leader would find nothing (A10)."""
    (fault,) = faults({key: "," if key.endswith("addresses") else ""})
    assert f"{key} must be set: it {why}" in fault.problem


def test_without_an_election_none_of_them_is_needed() -> None:
    load_config(None, {}, {"high-availability.zookeeper.quorum": "zk1:2181"})


@pytest.mark.parametrize("ports", ["0", "6123-6130"])
def test_a_daemon_of_several_has_one_rpc_port(ports: str) -> None:
    """TaskManagers find it by jobmanager.rpc.addresses (A13)."""
    (fault,) = faults({"jobmanager.rpc.port": ports})
    assert f"jobmanager.rpc.port ({ports}) must be one port" in fault.problem


def test_a_standby_can_name_the_leader_to_clients() -> None:
    """A redirection to 0.0.0.0 leads nowhere (A13)."""
    everywhere = {"rest.bind-address": "0.0.0.0", "security.allow-unauthenticated": "true"}
    (fault,) = faults(everywhere)
    assert "rest.address must say how clients reach this daemon" in fault.problem
    load_config(None, {}, {**POSSIBLE, **everywhere, "rest.address": "a.example"})


@pytest.mark.parametrize(
    ("address", "port", "addresses", "missed"),
    [
        ("c.example", "6123", "a:6123,b:6123", "c.example:6123"),
        ("a", "6124", "a:6123,b:6123", "a:6124"),
        ("fd00::1", "6123", "a:6123,b:6123", "[fd00::1]:6123"),
    ],
)
def test_a_daemon_that_task_managers_would_not_find_is_refused(
    address: str, port: str, addresses: str, missed: str
) -> None:
    """When it leads, all TaskManagers on other hosts would be lost (A13). The message has what to add."""
    options = {"jobmanager.rpc.address": address, "jobmanager.rpc.port": port, "jobmanager.rpc.addresses": addresses}
    (fault,) = faults(options)
    assert (
        f"look for the leader at {addresses}, but this daemon is at {missed} (jobmanager.rpc.address" in fault.problem
    )
    assert f"Add {missed} to the list. Or set" in fault.problem
    load_config(None, {}, {**POSSIBLE, **options, "jobmanager.rpc.addresses": f"{addresses},{missed.upper()}"})


@pytest.mark.parametrize("own", [{}, {"jobmanager.rpc.address": "127.0.0.1"}, {"jobmanager.rpc.address": "localhost"}])
def test_a_daemon_on_its_own_host_only_may_be_missing_among_the_addresses(own: dict[str, str]) -> None:
    """Its TaskManagers are the ones that it starts; and TaskManagers' hosts have such a configuration (A13)."""
    load_config(None, {}, {**POSSIBLE, **own})


def test_nodes_belong_to_one_user() -> None:
    """A password by digest and another by SASL would be two (A10)."""
    prefix = "high-availability.zookeeper.client"
    (fault,) = faults({f"{prefix}.digest-file": "/a", f"{prefix}.sasl-file": "/b"})
    assert "set high-availability.zookeeper.client.sasl-file if the servers ask for SASL" in fault.problem


def test_a_lease_has_time_for_three_questions() -> None:
    """One lost answer must not end a leadership (A11). The message has the arithmetic."""
    (fault,) = faults({SESSION: "2 s", RENEWAL: "600 ms"})
    assert "85% of" in fault.problem
    assert "which is 1.7 s. 3 questions" in fault.problem
    assert "take 1.8 s: raise the first, or lower the second" in fault.problem
    load_config(None, {}, {**POSSIBLE, SESSION: "2 s", RENEWAL: "560 ms"})


def test_tasks_live_longer_than_a_takeover_lasts() -> None:
    """Otherwise they would end before the next leader can adopt them (A14). The message has the arithmetic."""
    (fault,) = faults({"high-availability.orphan-timeout": "16 s", "heartbeat.timeout": "10 s"})
    assert "16 s together" in fault.problem
    load_config(None, {}, {**POSSIBLE, "high-availability.orphan-timeout": "17 s", "heartbeat.timeout": "10 s"})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:1", [("a", 1)]),
        ("a:6123, [::1]:6124 ,", [("a", 6123), ("::1", 6124)]),
        ("", []),
    ],
)
def test_addresses_are_read(text: str, found: list[tuple[str, int]]) -> None:
    assert socket_addresses(text) == found


@pytest.mark.parametrize("text", ["a", ":1", "a:", "a:0", "a:65536", "a:b", "a:1,b", "a:-1"])
def test_an_address_without_a_port_is_refused(text: str) -> None:
    """A TaskManager would never find that daemon (A13)."""
    with pytest.raises(ValueError, match="is not host:port"):
        socket_addresses(text)
    (fault,) = faults({"jobmanager.rpc.addresses": text})
    assert fault.key == "jobmanager.rpc.addresses"
