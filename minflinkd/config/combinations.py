"""Values that are fine one by one and impossible together."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from minflinkd.config.options import Config


def impossible(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every impossible combination: the keys that take part, and what is wrong with them."""
    yield from _times(config)
    yield from _counts(config)
    yield from _addresses(config)


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
    bound = {"rest.bind-address": config.rest.bind_address, "jobmanager.bind-host": config.jobmanager.bind_host}
    for key, address in bound.items():
        if not config.security.allow_unauthenticated and not _is_loopback(address):
            yield (
                (key,),
                f"{address!r} can be reached from other machines, and whoever reaches it can run code: use 127.0.0.1, "
                "or set security.allow-unauthenticated: true where the network lets nobody else in",
            )
    ranges = {"jobmanager.rpc.port": config.jobmanager.rpc_port, "blob.server.port": config.blob.server_port}
    fixed = {key: ports.first for key, ports in ranges.items() if ports.first == ports.last}  # a range has a way out
    fixed["rest.port"] = config.rest.port
    for key, port in fixed.items():
        for other, taken in fixed.items():
            if key < other and port == taken != 0:
                yield (key, other), f"{key} and {other} cannot both be {port}"


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False  # a name may mean anything
