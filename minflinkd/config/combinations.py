"""Values that are valid one by one but impossible together."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from minflinkd.config.ha_options import ANSWERS, LEASE, HaType
from minflinkd.config.options import Config
from minflinkd.config.quotas import Quotas
from minflinkd.config.resources import impossible_resources
from minflinkd.config.taskmanager_options import Driver
from minflinkd.config.tls_options import ClientCertificates
from minflinkd.config.values import socket_addresses
from minflinkd.runtime.spark_master import on_cluster


def impossible(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every impossible combination: the keys involved, and what is wrong with them."""
    yield from _times(config)
    yield from _counts(config)
    yield from _addresses(config)
    yield from _quotas(config)
    yield from _tls(config)
    yield from _ports(config)
    yield from _spark_cluster(config)
    yield from _run_as(config)
    yield from impossible_resources(config)
    yield from _kubernetes(config)
    yield from _high_availability(config)


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


def _quotas(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, text in config.security.quotas.items():
        try:
            Quotas.parse({name: text})
        except ValueError as error:
            yield (f"security.quotas.{name}",), str(error)


def _addresses(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    bound = {
        "rest.bind-address": config.rest.bind_address,
        "jobmanager.bind-host": config.jobmanager.bind_host,
        "taskmanager.bind-host": config.taskmanager.bind_host,
    }
    for key, address in bound.items():
        if not _is_loopback(address) and not _shuts_out_others(config, key):
            option = "security.ssl.rest.enabled" if key == "rest.bind-address" else "security.ssl.internal.enabled"
            tls = f"set {option}: true, "
            yield (
                (key,),
                f"{address!r} can be reached from other machines, and whoever reaches it can run code: use 127.0.0.1, "
                f"{tls}or set security.allow-unauthenticated: true where the network lets nobody else in",
            )
    if config.security.allow_unauthenticated and config.security.tokens_file:
        yield (
            ("security.allow-unauthenticated", "security.tokens-file"),
            "with security.allow-unauthenticated nobody is asked for a token: leave one of the two out",
        )
    reached = config.jobmanager.rpc_address or config.jobmanager.bind_host
    if _shuts_out_others(config, "jobmanager.bind-host") and _is_unspecified(reached):
        yield (
            ("jobmanager.bind-host", "jobmanager.rpc.address"),
            f"nobody can connect to {reached!r}: jobmanager.rpc.address must say how TaskManagers reach the daemon",
        )
    reached = config.taskmanager.host or config.taskmanager.bind_host
    if _shuts_out_others(config, "taskmanager.bind-host") and _is_unspecified(reached):
        yield (
            ("taskmanager.bind-host", "taskmanager.host"),
            f"nobody can connect to {reached!r}: taskmanager.host must say how TaskManagers reach each other",
        )


def _shuts_out_others(config: Config, key: str) -> bool:
    """Whether the address of this option may be one that others reach: it lets nobody in who does not belong (E40).

    Among themselves, the processes of a cluster show each other certificates. Clients of the HTTP endpoint show a
    token, which nobody on the way may read.
    """
    if config.security.allow_unauthenticated:
        return True
    return config.rest_tls.enabled if key == "rest.bind-address" else config.internal_tls.enabled


def _tls(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    for prefix, tls, names in (
        ("security.ssl.internal", config.internal_tls, ("certificate", "key", "ca")),
        ("security.ssl.rest", config.rest_tls, ("certificate", "key")),
    ):
        missing = [f"{prefix}.{name}" for name in names if tls.enabled and not getattr(tls, name)]
        if missing:
            yield (
                (f"{prefix}.enabled", *missing),
                f"{prefix}.enabled needs {' and '.join(missing)}; `minflinkd tls init` makes the files",
            )
    rest, shown, by = config.rest_tls, "security.ssl.rest.client-certificates", "security.ssl.rest.client-ca"
    if rest.client_certificates is ClientCertificates.NONE:
        if rest.client_ca:
            yield (by, shown), f"{by} has no effect without {shown}: set that to optional or required"
    elif not (rest.enabled and rest.client_ca):
        yield (
            (shown, by, "security.ssl.rest.enabled"),
            f"{shown}: {rest.client_certificates} needs security.ssl.rest.enabled and {by}; `minflinkd tls client` "
            "makes a CA for clients, and their certificates",
        )


def _ports(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    rpc = config.jobmanager.rpc_port
    driver = config.resourcemanager.driver
    if not driver.starts_here and rpc.fixed is None:
        yield (
            ("resourcemanager.driver", "jobmanager.rpc.port"),
            f"with resourcemanager.driver: {driver}, jobmanager.rpc.port ({rpc}) must be one port, or no TaskManager "
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


def _run_as(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    user = config.taskmanager.run_as
    if user and not config.taskmanager.local_state_dir:
        yield (
            ("taskmanager.run-as", "taskmanager.state.local.root-dir"),
            f"sessions of the user {user} do not reach the state directory: taskmanager.state.local.root-dir must name "
            f"a directory that belongs to {user} (install -d -o {user} -m 700 /var/lib/minflinkd-sessions)",
        )


def _kubernetes(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what keeps TaskManagers in Pods from reaching the daemon, or lets others reach them."""
    driver_key = "resourcemanager.driver"
    if config.resourcemanager.driver is not Driver.KUBERNETES:
        return
    needed = {
        "kubernetes.pod-template-file.taskmanager": (config.kubernetes.pod_template_file, "has the image of the Pods"),
        "jobmanager.rpc.address": (config.jobmanager.rpc_address, "says how Pods reach the daemon, such as a Service"),
        "security.secret-file": (config.security.secret_file, "names a file that the daemon and all Pods mount"),
        "execution.checkpointing.dir": (config.checkpointing.dir, "names a storage that all Pods reach"),
    }
    for key, (value, why) in needed.items():
        if not value:
            yield (driver_key, key), f"with {driver_key}: kubernetes, {key} must be set: it {why}"
    if not _shuts_out_others(config, "jobmanager.bind-host"):
        yield (
            (driver_key, "security.ssl.internal.enabled"),
            f"with {driver_key}: kubernetes, daemon and TaskManagers listen on addresses that other Pods reach, and "
            "whoever reaches them can run code: set security.ssl.internal.enabled: true, or set "
            "security.allow-unauthenticated: true where a NetworkPolicy lets nobody else in",
        )
    if config.taskmanager.run_as:
        yield (
            (driver_key, "taskmanager.run-as"),
            f"with {driver_key}: kubernetes, sessions run as the user of their container: taskmanager.run-as must be "
            "empty, and securityContext in the Pod template says which user that is",
        )
    if config.resourcemanager.largest_taskmanager:
        key = "resourcemanager.largest-taskmanager"
        why = f"with {driver_key}: kubernetes, Pods have the size of their template, none is larger: leave out {key}"
        yield ((driver_key, key), why)
    if config.ha.type is not HaType.NONE:
        yield (
            (driver_key, "high-availability.type"),
            f"with {driver_key}: kubernetes there is one daemon, which Kubernetes starts again: "
            "high-availability.type must be none",
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


def _high_availability(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    if config.jobmanager.rpc_addresses:
        try:
            socket_addresses(config.jobmanager.rpc_addresses)
        except ValueError as error:
            yield ("jobmanager.rpc.addresses",), f"jobmanager.rpc.addresses: {error}"
    ha, type_key = config.ha, "high-availability.type"
    if ha.type is HaType.NONE:
        return
    needed = {
        "high-availability.zookeeper.quorum": (ha.zookeeper.quorum, "says where ZooKeeper is"),
        "high-availability.storageDir": (config.cluster.storage_dir, "names a storage that all daemons reach"),
        "execution.checkpointing.dir": (config.checkpointing.dir, "names a storage that all daemons reach"),
        "security.secret-file": (config.security.secret_file, "names a file with the same secret on every host"),
        "jobmanager.rpc.addresses": (
            config.jobmanager.rpc_addresses.strip(", "),
            "names all daemons, so that TaskManagers find the one that leads",
        ),
    }
    for key, (value, why) in needed.items():
        if not value:
            yield (type_key, key), f"with {type_key}: {ha.type}, {key} must be set: it {why}"
    if ha.zookeeper.digest_file and ha.zookeeper.sasl_file:
        prefix = "high-availability.zookeeper.client"
        yield (
            (f"{prefix}.digest-file", f"{prefix}.sasl-file"),
            f"the cluster's nodes belong to one user: set {prefix}.sasl-file if the servers ask for SASL, otherwise "
            f"{prefix}.digest-file, and not both",
        )
    if config.jobmanager.rpc_port.fixed is None:
        yield (
            (type_key, "jobmanager.rpc.port"),
            f"with {type_key}: {ha.type}, jobmanager.rpc.port ({config.jobmanager.rpc_port}) must be one port, this "
            "daemon's port in jobmanager.rpc.addresses",
        )
    if config.rest.address == "localhost" and _is_unspecified(config.rest.bind_address):
        yield (
            (type_key, "rest.address"),
            f"with {type_key}: {ha.type}, rest.address must say how clients reach this daemon: a standby cannot "
            f"redirect them to {config.rest.bind_address}",
        )
    yield from _listed(config)
    yield from _slack(config)


def _listed(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield a fault if TaskManagers on other hosts would not find this daemon when it leads.

    A loopback address is no fault: this may be the configuration of a TaskManager's host.
    """
    manager, port = config.jobmanager, config.jobmanager.rpc_port.fixed
    host = manager.rpc_address or manager.bind_host
    if port is None or _is_loopback(host) or _is_unspecified(host):
        return
    try:
        listed = socket_addresses(manager.rpc_addresses)
    except ValueError:
        return  # a fault of its own
    if listed and (host.lower(), port) not in [(name.lower(), number) for name, number in listed]:
        own = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        yield (
            ("jobmanager.rpc.addresses", "jobmanager.rpc.address", "jobmanager.rpc.port"),
            f"TaskManagers look for the leader at {manager.rpc_addresses}, but this daemon is at {own} "
            f"({'jobmanager.rpc.address' if manager.rpc_address else 'jobmanager.bind-host'} and jobmanager.rpc.port): "
            f"they would not find it when it leads. Add {own} to the list. Or set jobmanager.rpc.address and "
            "jobmanager.rpc.port to this host's entry in the list, spelled in the same way",
        )


def _slack(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield durations that are too short for what must happen within them. The message has the arithmetic."""
    ha, session = config.ha, config.ha.zookeeper.session_timeout
    session_key = "high-availability.zookeeper.client.session-timeout"
    renewal_key = "high-availability.renewal-interval"
    if ANSWERS * ha.renewal_interval > ha.lease:
        yield (
            (session_key, renewal_key),
            f"a leader may act for {LEASE:.0%} of {session_key} ({session}) after an answer, which is {ha.lease:g} s. "
            f"{ANSWERS} questions, one every {renewal_key} ({ha.renewal_interval}), take "
            f"{ANSWERS * ha.renewal_interval:g} s: raise the first, or lower the second",
        )
    takeover = session + config.heartbeat.timeout
    if config.cluster.orphan_timeout <= takeover:
        yield (
            ("high-availability.orphan-timeout", session_key, "heartbeat.timeout"),
            f"a takeover lasts up to {session_key} ({session}) plus heartbeat.timeout ({config.heartbeat.timeout}), "
            f"{takeover:g} s together. Tasks without a leader end after high-availability.orphan-timeout "
            f"({config.cluster.orphan_timeout}), which must be longer",
        )
