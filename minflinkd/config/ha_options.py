"""Options of high availability with several daemons."""
# ruff: noqa: RUF009 - option() is dataclasses.field with the declaration as its metadata

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from minflinkd.config.declaration import option
from minflinkd.runtime.units import Duration


class HaType(StrEnum):
    NONE = "none"  # one daemon, which leads while it holds the lock of its state directory
    ZOOKEEPER = "zookeeper"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeper:
    """ZooKeeper, for high-availability.type: zookeeper."""

    quorum: str = option(
        "high-availability.zookeeper.quorum",
        "",
        "ZooKeeper's servers: host:port, separated by commas. A path after the last one (/a/b) is the root of all "
        "nodes.",
    )
    root: str = option(
        "high-availability.zookeeper.path.root",
        "/minflinkd",
        "Node in ZooKeeper below which each cluster has its own node, named by high-availability.cluster-id.",
    )
    session_timeout: Duration = option(
        "high-availability.zookeeper.client.session-timeout",
        Duration(6),
        "If ZooKeeper hears nothing from the leader for this time, another daemon leads. A leader stops acting after "
        "85 % of this time without an answer from ZooKeeper. The servers must grant this timeout (minSessionTimeout, "
        "maxSessionTimeout).",
        at_least=0.4,
    )
    digest_file: str = option(
        "high-availability.zookeeper.client.digest-file",
        "",
        "File with user:password. Only daemons with the same user and password can then read and write the cluster's "
        "nodes. Empty: everybody who reaches ZooKeeper can.",
    )
    sasl_file: str = option(
        "high-availability.zookeeper.client.sasl-file",
        "",
        "File with user:password for servers that require SASL (DIGEST-MD5). Set this or the digest file, not both. "
        "Needs the package pure-sasl.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HighAvailability:
    """Several daemons for one cluster: one leads, the others stand by."""

    type: HaType = option(
        "high-availability.type",
        HaType.NONE,
        "How daemons elect their leader. none: there is only one daemon. zookeeper: through ZooKeeper.",
    )
    cluster_id: str = option(
        "high-availability.cluster-id",
        "default",
        "Name of the cluster in ZooKeeper, the same for all of its daemons.",
    )
    renewal_interval: Duration = option(
        "high-availability.renewal-interval",
        Duration(1),
        "How often the leader asks ZooKeeper whether it still leads.",
        at_least=0.05,
    )
    zookeeper: ZooKeeper = field(default_factory=ZooKeeper)

    @property
    def lease(self) -> float:
        """How long a leader may act after an answer of the coordination service, in seconds."""
        return LEASE * float(self.zookeeper.session_timeout)


LEASE = 0.85  # of the session timeout; the rest is for clocks that drift, and for messages in flight
ANSWERS = 3  # questions within a lease: one lost answer must not end a leadership
