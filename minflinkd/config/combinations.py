"""Values that are valid one by one but impossible together."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from minflinkd.config.options import Config
from minflinkd.config.taskmanager_options import Driver
from minflinkd.runtime.spark_master import on_cluster


def impossible(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every impossible combination: the keys involved, and what is wrong with them."""
    yield from _times(config)
    yield from _counts(config)
    yield from _addresses(config)
    yield from _ports(config)
    yield from _spark_cluster(config)


def _times(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    heartbeat, session = config.heartbeat, config.taskmanager.session
    backoff = config.restart_strategy.exponential_delay
    if heartbeat.timeout <= heartbeat.interval:
        yield (
            ("heartbeat.interval", "heartbeat.timeout"),
            f"heartbeat.timeout ({heartbeat.timeout}) must be longer than heartbeat.interval ({heartbeat.interval}), "
            "or every party is lost between two heartbeats",
        )
    if session.stopped_timeout > session.timeout:
        yield (
            ("taskmanager.session.timeout", "taskmanager.session.stopped-timeout"),
            f"taskmanager.session.stopped-timeout ({session.stopped_timeout}) must not be longer than "
            f"taskmanager.session.timeout ({session.timeout})",
        )
    if backoff.initial_backoff > backoff.max_backoff:
        prefix = "restart-strategy.exponential-delay"
        yield (
            (f"{prefix}.initial-backoff", f"{prefix}.max-backoff"),
            f"initial-backoff ({backoff.initial_backoff}) must not be longer than max-backoff ({backoff.max_backoff})",
        )


def _counts(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    rm = config.resourcemanager
    for name, count in (("min", rm.min_taskmanagers), ("standby", rm.standby_taskmanagers)):
        if count > rm.max_taskmanagers:
            key = f"resourcemanager.{name}-taskmanagers"
            yield (
                (key, "resourcemanager.max-taskmanagers"),
                f"{key} ({count}) must not be larger than resourcemanager.max-taskmanagers ({rm.max_taskmanagers})",
            )


def _addresses(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    bound = {
        "rest.bind-address": config.rest.bind_address,
        "jobmanager.bind-host": config.jobmanager.bind_host,
        "taskmanager.bind-host": config.taskmanager.bind_host,
    }
    for key, address in bound.items():
        if not config.security.allow_unauthenticated and not _is_loopback(address):
            yield (
                (key,),
                f"{address!r} can be reached from other machines, and whoever reaches it can run code: use 127.0.0.1, "
                "or set security.allow-unauthenticated: true where the network lets nobody else in",
            )
    reached = config.jobmanager.rpc_address or config.jobmanager.bind_host
    if config.security.allow_unauthenticated and _is_unspecified(reached):
        yield (
            ("jobmanager.bind-host", "jobmanager.rpc.address"),
            f"nobody can connect to {reached!r}: jobmanager.rpc.address must say how TaskManagers reach the daemon",
        )
    reached = config.taskmanager.host or config.taskmanager.bind_host
    if config.security.allow_unauthenticated and _is_unspecified(reached):
        yield (
            ("taskmanager.bind-host", "taskmanager.host"),
            f"nobody can connect to {reached!r}: taskmanager.host must say how TaskManagers reach each other",
        )


def _ports(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    rpc = config.jobmanager.rpc_port
    if config.resourcemanager.driver is Driver.STANDALONE and rpc.fixed is None:
        yield (
            ("resourcemanager.driver", "jobmanager.rpc.port"),
            f"with resourcemanager.driver: standalone, jobmanager.rpc.port ({rpc}) must be one port, or no TaskManager "
            "finds the daemon",
        )
    # Ranges are not checked: if one of their ports is taken, another can be used.
    fixed = {"jobmanager.rpc.port": rpc.fixed, "blob.server.port": config.blob.server_port.fixed}
    fixed["rest.port"] = config.rest.port or None
    for key, port in fixed.items():
        for other, taken in fixed.items():
            if key < other and port is not None and port == taken:
                yield (key, other), f"{key} and {other} cannot both be {port}"


def _spark_cluster(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    session = config.taskmanager.session
    master = session.spark_conf.get("spark.master", session.spark_master)
    if on_cluster(master) and not config.taskmanager.local_state_dir:
        yield (
            ("taskmanager.spark.master", "taskmanager.state.local.root-dir"),
            "executors of a Spark cluster write the state of running tasks, and their TaskManager takes snapshots of "
            "it: taskmanager.state.local.root-dir must name a directory that all of them have at the same path",
        )


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False  # a name may mean anything


def _is_unspecified(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return False
