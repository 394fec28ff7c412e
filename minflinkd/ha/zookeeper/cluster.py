"""Everything that one daemon uses in ZooKeeper: its session, its claims, and the cluster's records."""

from __future__ import annotations

import contextlib
import re
import secrets
from typing import TYPE_CHECKING

import msgspec
import structlog
from kazoo import exceptions as zk

from minflinkd.config.ha_options import HighAvailability
from minflinkd.ha.service import told
from minflinkd.ha.zookeeper.ballot import ZooKeeperBallot
from minflinkd.ha.zookeeper.credentials import credentials
from minflinkd.ha.zookeeper.records import SCHEME, ZooKeeperRecords
from minflinkd.ha.zookeeper.session import ZooKeeperSession
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import MALFORMED, Consequence, MinflinkError
from minflinkd.storage.location import Location
from minflinkd.storage.masking import Mask
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.resilient import ResilientStorage

if TYPE_CHECKING:
    from minflinkd.ha.elector import Elector

FORMAT = 1
OVERFLOW = "records"  # directory of large records, below the cluster's id in high-availability.storageDir
_CLUSTER_ID = re.compile(r"[0-9a-f]{32}")

log = structlog.get_logger(__name__)


class OtherCluster(MinflinkError):
    """The data in ZooKeeper belongs to another cluster, to a later minflinkd, or to another program."""

    code = "other-cluster"
    consequence = Consequence.REFUSED


class ClusterNode(msgspec.Struct, frozen=True):
    """What the first daemon of a cluster wrote about the cluster."""

    format: int
    cluster_id: str
    secret: str  # fingerprint


class LeaderRecords:
    """The cluster's records during one leadership. Nothing is written after `aclose`."""

    def __init__(self, records: ZooKeeperRecords) -> None:
        self._records = records
        self._resilient = ResilientStorage(records, CommonOptions(), Mask())
        self.jobs = Location(self._resilient, SCHEME, "/jobs")

    async def sweep(self) -> None:
        """Delete earlier leaders' unreferenced files of large records. Raises nothing: the next leader tries again."""
        try:
            count = await self._records.sweep()
        except MinflinkError as error:
            log.warning("unreferenced large records are left for the next leader", error=told(error))
            return
        if count:
            log.info("unreferenced large records are deleted", files=count)

    async def aclose(self) -> None:
        await self._resilient.aclose()


class ZooKeeperCluster(Component):
    def __init__(self, options: HighAvailability, *, overflow: Location, fingerprint: str) -> None:
        """`overflow`: the storage for large records. `fingerprint`: of the cluster's secret. Raises UnusableDigest."""
        super().__init__("zookeeper cluster")
        self.elector: Elector | None = None
        self._fingerprint = fingerprint
        servers, _, path = options.zookeeper.quorum.partition("/")  # as in ZooKeeper's own connection strings
        parts = (part.strip("/") for part in (path, options.zookeeper.root, options.cluster_id))
        self._root = "/" + "/".join(part for part in parts if part)
        self._storage_dir = overflow
        timeout = float(options.zookeeper.session_timeout)
        self._session = ZooKeeperSession(
            servers,
            session_timeout=timeout,
            request_timeout=timeout / 3,  # leaves time to ask another server within the lease
            credentials=credentials(options.zookeeper),
            on_disconnect=lambda: None if self.elector is None else self.elector.disconnected(),
            on_expiry=lambda: None if self.elector is None else self.elector.gone("the session with ZooKeeper expired"),
        )
        self.ballot = ZooKeeperBallot(self._session, self._root)

    async def _start(self) -> None:
        await self._session.start()

    async def _stop(self) -> None:
        await self._session.aclose()

    def records(self, cluster_id: str, epoch: int) -> LeaderRecords:
        """Return the records for the leader of this epoch. Call this only while it leads. Raises ClaimGone."""
        overflow = self._storage_dir.child(cluster_id, OVERFLOW)
        return LeaderRecords(
            ZooKeeperRecords(self._session, self._root, fence=self.ballot.fence, epoch=epoch, overflow=overflow)
        )

    async def cluster_id(self) -> str:
        """Return the cluster's id, which the first daemon created.

        Raises OtherCluster, ServiceUnavailable, ServiceRefused.
        """
        node = f"{self._root}/cluster"
        mine = ClusterNode(format=FORMAT, cluster_id=secrets.token_hex(16), secret=self._fingerprint)
        await self._session.call("ensure_path", self._root)
        with contextlib.suppress(zk.NodeExistsError):
            await self._session.call("create", node, msgspec.json.encode(mine))
        data, _ = await self._session.call("get", node)
        return self._checked(node, data).cluster_id

    def _checked(self, node: str, data: bytes) -> ClusterNode:
        try:
            found = msgspec.json.decode(data, type=ClusterNode)
        except MALFORMED as error:
            raise OtherCluster(
                f"{node} in ZooKeeper does not say which cluster it belongs to: {error}",
                hint="set high-availability.cluster-id to a name that no other program uses",
            ) from error
        if found.format > FORMAT:
            raise OtherCluster(
                f"{node} in ZooKeeper is from a later minflinkd (format {found.format}; this one reads {FORMAT})",
                hint="install that version or a later one: a downgrade would lose jobs",
            )
        if found.secret != self._fingerprint:
            raise OtherCluster(
                "the cluster has another secret than this daemon",
                hint="copy the file of security.secret-file from a host whose daemon leads, or set another "
                "high-availability.cluster-id",
            )
        if not _CLUSTER_ID.fullmatch(found.cluster_id):  # it becomes part of paths
            raise OtherCluster(
                f"{node} in ZooKeeper contains no cluster id: {found.cluster_id[:80]!r}",
                hint="restore it from a backup, or set another high-availability.cluster-id and start the jobs from "
                "their checkpoints",
            )
        return found
