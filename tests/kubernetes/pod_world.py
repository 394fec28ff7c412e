"""A launcher of Pods, an API server, and nodes on which Pods are small real processes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minflinkd.config.kubernetes_options import Kubernetes
from minflinkd.resourcemanager.kubernetes.access import access_of
from minflinkd.resourcemanager.kubernetes.client import KubernetesClient
from minflinkd.resourcemanager.kubernetes.launcher import KubernetesLauncher, Reports
from minflinkd.resourcemanager.kubernetes.template import Belonging
from minflinkd.runtime.ids import ResourceId
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.kubelet import Kubelets
from tests.waiting import until

TM = ResourceId("tm-000000000001")
OTHER = ResourceId("tm-000000000002")
CLUSTER_ID = "c" * 32
OWN_POD = "minflinkd-0"
SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
POLITE = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + SLEEP
FAIL = "import sys\nprint('no such thing as Spark', file=sys.stderr)\nsys.exit(3)"
EXPLAIN = "import sys\nsys.exit('many lines\\nerror: no such thing as Java')"
STATEFUL_SET = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "minflinkd", "uid": "u-1", "controller": True}


def template(script: str = POLITE) -> dict[str, Any]:
    container = {"name": "taskmanager", "image": "minflinkd:0.1.0", "command": [sys.executable, "-c", script]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {"terminationGracePeriodSeconds": 600, "containers": [container]},
    }


@dataclass
class PodWorld:
    """`exits`, `waits` and `found`: what the launcher reported, in order."""

    server: ApiServer
    nodes: Kubelets
    account: Path  # what a Pod finds of its service account
    epoch: int = 1
    script: str = POLITE
    leads: bool = True
    own_pod: str = ""
    exits: list[tuple[ResourceId, str]] = field(default_factory=list)
    waits: list[tuple[ResourceId, str]] = field(default_factory=list)
    found: list[ResourceId] = field(default_factory=list)
    launchers: list[KubernetesLauncher] = field(default_factory=list)

    def client(self) -> KubernetesClient:
        options = Kubernetes(api_server=self.server.url)
        return KubernetesClient(access_of(options, {}, self.account), select=f"minflinkd/cluster={CLUSTER_ID}")

    @property
    def launcher(self) -> KubernetesLauncher:
        """The present daemon's."""
        if not self.launchers:
            self.new_launcher()
        return self.launchers[-1]

    def new_launcher(self) -> KubernetesLauncher:
        launcher = KubernetesLauncher(
            self.client(),
            template=template(self.script),
            belonging=Belonging(CLUSTER_ID, self.epoch, self.server.namespace),
            own_pod=self.own_pod,
            reports=Reports(
                on_exit=lambda resource_id, how: self.exits.append((resource_id, how)),
                on_waiting=lambda resource_id, why: self.waits.append((resource_id, why)),
                on_found=self.found.append,
            ),
            leads=lambda: self.leads,
            check=True,
        )
        self.launchers.append(launcher)
        return launcher

    async def start(self, resource_id: ResourceId = TM) -> int:
        """Start a TaskManager. Return its pid, when its process says that it is up."""
        await self.launcher.start(resource_id)
        log = self.nodes.directory / f"{resource_id}.log"
        await until(lambda: log.exists() and "up" in log.read_text())
        return self.nodes.pid(resource_id)

    async def exit(self, resource_id: ResourceId = TM) -> str:
        """Wait until the exit is reported, and return how it ended."""
        return await until(lambda: next((how for who, how in self.exits if who == resource_id), None))

    async def waiting(self, word: str) -> str:
        """Wait until some Pod is said to wait, with this word in the reason."""
        return await until(lambda: next((why for _, why in self.waits if word in why), None))

    async def phase(self, resource_id: ResourceId, phase: str) -> None:
        await until(lambda: (self.server.pod(resource_id) or {"status": {}})["status"].get("phase") == phase)

    async def crash(self) -> None:
        """End the daemon without cleanup and start another."""
        await self.launcher.aclose()
        self.epoch += 1
        self.new_launcher()


@contextlib.asynccontextmanager
async def pod_world(server: ApiServer, nodes: Kubelets, account: Path) -> AsyncIterator[PodWorld]:
    world = PodWorld(server, nodes, account)
    try:
        yield world
    finally:
        await asyncio.gather(*(launcher.aclose() for launcher in world.launchers))
