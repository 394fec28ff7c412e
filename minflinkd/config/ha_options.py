"""Options of high availability with several daemons."""
# ruff: noqa: RUF009 - option() is dataclasses.field with the declaration as its metadata

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from minflinkd.config.declaration import option
from minflinkd.runtime.units import Duration


class HaType(StrEnum):
    NONE = "none"  # the daemon leads that holds the lock of its state directory
    ZOOKEEPER = "zookeeper"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeper:
    """ZooKeeper, for high-availability.type: zookeeper."""

    quorum: str = option(
        "high-availability.zookeeper.quorum",
        "",
        "ZooKeeper's servers: host:port, separated by commas. A path may follow the last one (/a/b): all nodes lie "
        "below it.",
    )
    root: str = option(
        "high-availability.zookeeper.path.root",
        "/minflinkd",
        "Node in ZooKeeper below which each cluster has a node of its own, named by high-availability.cluster-id.",
    )
    session_timeout: Duration = option(
        "high-availability.zookeeper.client.session-timeout",
        Duration(6),
        "After this time without a sign of life from the leader, another daemon leads. A leader that has had no answer "
        "from ZooKeeper for 85 % of it stops acting. The servers must grant it (minSessionTimeout, maxSessionTimeout).",
        at_least=0.4,
    )
    digest_file: str = option(
        "high-availability.zookeeper.client.digest-file",
        "",
        "File with user:password. Only daemons with the same one can then read and write the cluster's nodes. Empty: "
        "everybody who reaches ZooKeeper can.",
    )
    sasl_file: str = option(
        "high-availability.zookeeper.client.sasl-file",
        "",
        "File with user:password for servers that ask for SASL (DIGEST-MD5). Instead of the digest file, not beside "
        "it. Needs the package pure-sasl.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HighAvailability:
    """Several daemons for one cluster: one leads, the others stand by."""

    type: HaType = option(
        "high-availability.type",
        HaType.NONE,
        "Who decides which daemon leads. none: there is one daemon. zookeeper: ZooKeeper.",
    )
    cluster_id: str = option(
        "high-availability.cluster-id",
        "default",
        "Name of the cluster in the coordination service, the same for all of its daemons.",
    )
    renewal_interval: Duration = option(
        "high-availability.renewal-interval",
        Duration(1),
        "How often the leader asks the coordination service whether it still leads.",
        at_least=0.05,
    )
    zookeeper: ZooKeeper = field(default_factory=ZooKeeper)

    @property
    def lease(self) -> float:
        """Seconds for which an answer of the coordination service lets a leader act."""
        return LEASE * float(self.zookeeper.session_timeout)


LEASE = 0.85  # of the session timeout; the rest is for clocks that drift, and for what is under way
ANSWERS = 3  # questions within a lease: one lost answer must not end a leadership
