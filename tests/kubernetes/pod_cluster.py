"""A real daemon whose TaskManagers are Pods on the emulated nodes, with everything mounted as on a real cluster."""

from __future__ import annotations

import base64
import json
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import FOR_TESTS, Cluster, free_port, running_cluster
from tests.kubernetes.api_server import ApiServer, api_server
from tests.kubernetes.kubelet import Kubelets, kubelets
from tests.tls import CaInTest, everywhere


@dataclass
class PodCluster:
    cluster: Cluster
    server: ApiServer
    nodes: Kubelets

    def pod_uid(self, name: str) -> str:
        pod = self.server.pod(name)
        return "" if pod is None else str(pod["metadata"]["uid"])


@asynccontextmanager
async def pod_cluster(base: Path, *, room: int = 10, https: bool = False, **more: object) -> AsyncIterator[PodCluster]:
    """Run a daemon and an API server with two nodes, each with `room` Pods, and TLS between daemon and TaskManagers.

    `https`: clients use TLS as well, which those that upload files need.
    """
    base.mkdir(parents=True, exist_ok=True)
    files, secret = CaInTest(base / "ca").files(), secrets.token_hex(32)
    mounted = base / "mounted"
    template = base / "taskmanager.yaml"
    async with api_server(base / "account") as server, kubelets(server, base / "nodes") as nodes:
        nodes.nodes = [type(nodes.nodes[0])(name, room) for name in ("node-1", "node-2")]
        settings: dict[str, object] = {
            **(everywhere(files) if https else {}),
            "resourcemanager.driver": "kubernetes",
            "kubernetes.api-server": server.url,
            "kubernetes.namespace": server.namespace,
            "kubernetes.token-file": str(base / "account" / "token"),
            "kubernetes.pod-template-file.taskmanager": str(template),
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": free_port(),
            "rest.port": free_port(),
            "security.secret-file": str(mounted / "secret" / "cluster.secret"),
            "security.ssl.internal.enabled": True,
            "security.ssl.internal.certificate": str(mounted / "tls" / "internal.pem"),
            "security.ssl.internal.key": str(mounted / "tls" / "internal-key.pem"),
            "security.ssl.internal.ca": str(mounted / "tls" / "ca.pem"),
            "execution.checkpointing.dir": f"file://{base / 'checkpoints'}",
            "high-availability.storageDir": f"file://{base / 'ha'}",
            "process.working-dir": str(base / "pods"),
            **more,
        }
        tls = {"internal.pem": files.certificate, "internal-key.pem": files.key, "ca.pem": files.ca}
        _create(server, "Secret", "secret", {"cluster.secret": secret.encode()})
        _create(server, "Secret", "tls", {name: path.read_bytes() for name, path in tls.items()})
        text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in {**FOR_TESTS, **settings}.items())
        _create(server, "ConfigMap", "configuration", {"minflinkd.yaml": text.encode()})
        template.write_text(json.dumps(_template(mounted)))
        _mount(mounted / "secret", {"cluster.secret": secret.encode()})  # the daemon itself runs in no Pod
        _mount(mounted / "tls", {name: path.read_bytes() for name, path in tls.items()})
        async with running_cluster(base / "cluster", ca_file=files.ca if https else None, **settings) as cluster:
            yield PodCluster(cluster, server, nodes)


def _template(mounted: Path) -> dict[str, Any]:
    container = {
        "name": "taskmanager",
        "image": "minflinkd:0.1.0",
        "command": [sys.executable, "-m", "minflinkd"],
        "env": [{"name": "MINFLINKD_CONFIG", "value": str(mounted / "configuration" / "minflinkd.yaml")}],
        "volumeMounts": [
            {"name": name, "mountPath": str(mounted / name)} for name in ("secret", "tls", "configuration")
        ],
    }
    volumes: list[dict[str, Any]] = [{"name": name, "secret": {"secretName": name}} for name in ("secret", "tls")]
    volumes.append({"name": "configuration", "configMap": {"name": "configuration"}})
    return {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container], "volumes": volumes}}


def _create(server: ApiServer, kind: str, name: str, files: dict[str, bytes]) -> None:
    data = {
        file: base64.b64encode(content).decode() if kind == "Secret" else content.decode()
        for file, content in files.items()
    }
    new = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "data": data}
    server.store.create(f"{kind.lower()}s", server.namespace, new)


def _mount(directory: Path, files: dict[str, bytes]) -> None:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_bytes(content)
        (directory / name).chmod(0o440)
