"""The metrics of one daemon. It has its own registry, so that two daemons in one process do not conflict."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Gauge, Info, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from minflinkd.metrics.collectors import (
    ClusterCollector,
    RequestCounts,
    StorageCollector,
    StorageRequests,
)
from minflinkd.metrics.history.book import HistoryBook
from minflinkd.metrics.leadership import LeadershipCollector
from minflinkd.metrics.rpc import RpcCollector, RpcFigures
from minflinkd.metrics.samples import LeadershipSample


def _no_storage() -> Mapping[str, Mapping[str, RequestCounts]]:
    return {}


class Metrics:
    """Created once by the daemon. Components with their own metrics add them to `registry`.

    `heartbeat_timeout`: seconds, as configured.
    """

    def __init__(
        self,
        *,
        version: str,
        heartbeat_timeout: float = 0.0,
        rpc: RpcFigures | None = None,
        storage_requests: StorageRequests = _no_storage,
        leadership: Callable[[], LeadershipSample] = LeadershipSample,
    ) -> None:
        self.history = HistoryBook()
        self.registry = CollectorRegistry()
        self.cluster = ClusterCollector()
        self.registry.register(self.cluster)
        self.rpc = rpc or RpcFigures()
        self.registry.register(RpcCollector(self.rpc))
        self.registry.register(StorageCollector(storage_requests))
        self.registry.register(LeadershipCollector(leadership))
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Info("minflinkd", "The running version.", registry=self.registry).info({"version": version})
        Gauge(
            "minflinkd_heartbeat_timeout_seconds",
            "Silence after which a component counts as lost.",
            registry=self.registry,
        ).set(heartbeat_timeout)

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)
