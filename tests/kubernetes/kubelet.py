"""Nodes for tests: the scheduler, and a kubelet that runs the containers of Pods as processes of this machine.

A container is one process with what it starts, the address of every Pod is loopback, and paths of volumes are paths of
this machine. What the kubelet writes into a Pod's status is what a real one writes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.store import Object, Refusal

POD_UID = "TEST_POD_UID"  # variable by which the processes of a Pod are found
TAIL_BYTES, TAIL_LINES = 2048, 80  # of the log, in a termination message
_VARIABLE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass
class Node:
    name: str
    room: int = 10  # Pods
    lost: bool = False  # its kubelet is silent; what runs there runs on


@dataclass
class _Running:
    pod: Object
    process: asyncio.subprocess.Process | None = None
    killed_for: str = ""  # the reason in its status
    ending: asyncio.Task[None] | None = None
    grace: int = -1


@dataclass
class Kubelets:
    """All nodes. `missing`: images that no registry has."""

    server: ApiServer
    directory: Path
    nodes: list[Node] = field(default_factory=lambda: [Node("node-1")])
    missing: set[str] = field(default_factory=set)
    _running: dict[str, _Running] = field(default_factory=dict)  # by uid
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    # --- what a test does ---

    def pid(self, name: str) -> int:
        """Return the pid of the container's process; 0: there is none."""
        found = self._of(name)
        return found.process.pid if found is not None and found.process is not None else 0

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid(name), number)

    def out_of_memory(self, name: str) -> None:
        """Kill the container as the kernel does if it needs more memory than its limit."""
        found = self._of(name)
        assert found is not None
        found.killed_for = "OOMKilled"
        self.kill(name)

    def evict(self, name: str, message: str) -> None:
        """End the Pod as a kubelet does that has no memory or disk left."""
        found = self._of(name)
        assert found is not None
        found.killed_for = f"Evicted: {message}"
        self.kill(name)

    def lose(self, node: str) -> None:
        """Let nothing be heard of the node. After some time, Kubernetes asks for the deletion of its Pods."""
        self._node(node).lost = True

    def give_up(self, node: str) -> None:
        """Do what Kubernetes does with the Pods of a lost node after its tolerations, which are 5 min by default."""
        for pod in self.server.store.all("pods"):
            if pod["spec"].get("nodeName") == node:
                self._condition(
                    pod,
                    "DisruptionTarget",
                    "True",
                    "DeletionByTaintManager",
                    "Taint manager: deleting due to NoExecute taint",
                )
                self.server.store.delete("pods", self.server.namespace, pod["metadata"]["name"])

    def remove(self, node: str) -> None:
        """Let the node be removed from the cluster: its Pods are gone, whether their processes are or not."""
        for pod in self.server.store.all("pods"):
            if pod["spec"].get("nodeName") == node:
                self._status(pod, {"phase": "Failed"})
                self.server.store.remove("pods", self.server.namespace, pod["metadata"]["name"])

    def find(self, node: str) -> None:
        """Let the node be heard of again."""
        self._node(node).lost = False
        self.server.store.wake()

    # --- what the nodes do ---

    async def run(self) -> None:
        while True:
            turn = self.server.store.turn
            for pod in self.server.store.all("pods"):
                self._look_at(pod)
            there = {pod["metadata"]["uid"] for pod in self.server.store.all("pods")}
            for uid, found in list(self._running.items()):
                if uid not in there and not self._is_lost(found.pod):
                    self._end(found, 0)
            await self.server.store.change(turn, 1.0)

    def _look_at(self, pod: Object) -> None:
        metadata = pod["metadata"]
        if not pod["spec"].get("nodeName"):
            self._schedule(pod)
            return
        if self._is_lost(pod):
            return
        found = self._running.get(metadata["uid"])
        if found is None:
            if "deletionTimestamp" in metadata:
                self._remove(pod)
            elif pod["status"]["phase"] == "Pending":
                self._running[metadata["uid"]] = running = _Running(pod)
                self._job(self._start(running))
        elif "deletionTimestamp" in metadata:
            self._end(found, metadata["deletionGracePeriodSeconds"])

    def _schedule(self, pod: Object) -> None:
        taken = [each["spec"].get("nodeName") for each in self.server.store.all("pods")]
        node = next((n for n in self.nodes if not n.lost and taken.count(n.name) < n.room), None)
        if node is None:
            count = len(self.nodes)
            self._condition(
                pod, "PodScheduled", "False", "Unschedulable", f"0/{count} nodes are available: {count} Too many pods."
            )
            return
        pod["spec"]["nodeName"] = node.name
        self.server.store.replace("pods", self.server.namespace, pod)
        self._condition(pod, "PodScheduled", "True", None, None)

    async def _start(self, found: _Running) -> None:
        """Run its container. If the Pod is removed meanwhile, nothing of it is left."""
        try:
            await self._run_container(found)
        except Refusal:
            await asyncio.to_thread(_kill_rest, found.pod["metadata"]["uid"])
            if found.process is not None:
                await found.process.wait()

    async def _run_container(self, found: _Running) -> None:
        """Raises Refusal if the Pod is gone."""
        pod = found.pod
        container = pod["spec"]["containers"][0]
        name, image = container["name"], container["image"]
        self._container(pod, {"waiting": {"reason": "ContainerCreating"}})
        if image in self.missing:
            self._container(pod, {"waiting": {"reason": "ErrImagePull", "message": f'failed to pull image "{image}"'}})
            self._container(
                pod, {"waiting": {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}}
            )
            return
        try:
            for mount in container.get("volumeMounts", []):
                await asyncio.to_thread(self._mount, pod, mount)
        except Refusal as error:
            self._container(pod, {"waiting": {"reason": "ContainerCreating"}})
            self._condition(pod, "Ready", "False", "ContainersNotReady", error.message)
            return
        log = self.directory / f"{pod['metadata']['name']}.log"
        environment = self._environment(pod, container)
        words = [*container["command"], *container.get("args", [])]
        argv = [_VARIABLE.sub(lambda match: environment.get(match[1], match[0]), word) for word in words]
        with log.open("ab") as output:
            found.process = process = await asyncio.create_subprocess_exec(
                *argv,
                env=environment | {POD_UID: pod["metadata"]["uid"]},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._container(pod, {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}}, phase="Running")
        code = await process.wait()
        await asyncio.to_thread(_kill_rest, pod["metadata"]["uid"])
        while self._is_lost(pod):
            await self.server.store.change(self.server.store.turn, 1.0)
        self._ended(found, code, name, log)

    def _ended(self, found: _Running, code: int, name: str, log: Path) -> None:
        pod, reason = found.pod, "Completed" if code == 0 else "Error"
        shown = 128 - code if code < 0 else code
        phase = "Succeeded" if code == 0 else "Failed"
        message = {"message": tail} if shown and (tail := _tail(log)) else {}
        self._running.pop(pod["metadata"]["uid"], None)
        with contextlib.suppress(Refusal):  # it may have been removed by force
            if found.killed_for.startswith("Evicted"):
                why = found.killed_for.removeprefix("Evicted: ")
                self._status(pod, {"phase": "Failed", "reason": "Evicted", "message": why})
            else:
                reason = found.killed_for or reason
                terminated = {"exitCode": shown, "reason": reason, **message}
                self._container(pod, {"terminated": terminated}, phase=phase)
            current = self._current(pod)
            if "deletionTimestamp" in current["metadata"]:
                self._remove(current)

    def _end(self, found: _Running, grace: int) -> None:
        """Ask its process to end, and kill it after `grace` seconds. A shorter time replaces a longer one."""
        if found.ending is not None and found.grace <= grace:
            return
        if found.ending is not None:
            found.ending.cancel()
        found.grace = grace
        found.ending = self._job(self._terminate(found, grace))

    async def _terminate(self, found: _Running, grace: int) -> None:
        process = found.process
        if process is None:  # it waits, for its image or to be started
            self._running.pop(found.pod["metadata"]["uid"], None)
            with contextlib.suppress(Refusal):
                self._remove(found.pod)
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await process.wait()
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)

    # --- statuses ---

    def _container(self, pod: Object, state: Object, phase: str = "Pending") -> None:
        name, image = (pod["spec"]["containers"][0][key] for key in ("name", "image"))
        ready = "running" in state
        status = {"name": name, "image": image, "imageID": "", "ready": ready, "restartCount": 0, "state": state}
        address = {"podIP": "127.0.0.1"} if phase != "Pending" else {}
        self._status(pod, {"phase": phase, "containerStatuses": [status], **address})

    def _current(self, pod: Object) -> Object:
        """Return the Pod as it is now. Raises Refusal if it is gone, also if another one has its name."""
        found = self.server.store.get("pods", self.server.namespace, pod["metadata"]["name"])
        if found["metadata"]["uid"] != pod["metadata"]["uid"]:
            raise Refusal(404, "NotFound", f"{pod['metadata']['uid']} is gone")
        return found

    def _condition(self, pod: Object, kind: str, status: str, reason: str | None, message: str | None) -> None:
        found = self._current(pod)["status"]
        condition = {"type": kind, "status": status, "reason": reason, "message": message}
        conditions = [each for each in found.get("conditions", []) if each["type"] != kind]
        if condition in found.get("conditions", []):
            return
        self._status(pod, {"conditions": [*conditions, {k: v for k, v in condition.items() if v is not None}]})

    def _status(self, pod: Object, changes: Object) -> None:
        found = self._current(pod)
        if all(found["status"].get(key) == value for key, value in changes.items()):
            return
        self.server.store.patch("pods", self.server.namespace, pod["metadata"]["name"], {"status": changes})

    def _remove(self, pod: Object) -> None:
        self._current(pod)
        self.server.store.remove("pods", self.server.namespace, pod["metadata"]["name"])

    # --- containers ---

    def _environment(self, pod: Object, container: Object) -> dict[str, str]:
        fields = {
            "status.podIP": "127.0.0.1",
            "metadata.name": pod["metadata"]["name"],
            "metadata.namespace": pod["metadata"]["namespace"],
        }
        found = dict(os.environ)
        for variable in container.get("env", []):
            source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            found[variable["name"]] = fields[source] if source else variable.get("value", "")
        return found

    def _mount(self, pod: Object, mount: Object) -> None:
        """Put the files of a volume where the container looks for them. Raises Refusal if there is no such object."""
        volume = next(each for each in pod["spec"]["volumes"] if each["name"] == mount["name"])
        place = Path(mount["mountPath"])
        place.mkdir(parents=True, exist_ok=True)
        for name, data in self._files(volume).items():
            file = place / name
            if not file.exists() or file.read_bytes() != data:
                file.write_bytes(data)
                file.chmod(0o440)

    def _files(self, volume: Object) -> dict[str, bytes]:
        store, namespace = self.server.store, self.server.namespace
        if "secret" in volume:
            data = store.get("secrets", namespace, volume["secret"]["secretName"])["data"]
            return {name: base64.b64decode(text) for name, text in data.items()}
        if "configMap" in volume:
            data = store.get("configmaps", namespace, volume["configMap"]["name"])["data"]
            return {name: text.encode() for name, text in data.items()}
        return {}

    def _of(self, name: str) -> _Running | None:
        return next((each for each in self._running.values() if each.pod["metadata"]["name"] == name), None)

    def _node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def _is_lost(self, pod: Object) -> bool:
        name = pod["spec"].get("nodeName")
        return any(node.lost for node in self.nodes if node.name == name)

    def _job(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def aclose(self) -> None:
        """Kill all containers."""
        for node in self.nodes:
            node.lost = False
        for uid in list(self._running):
            await asyncio.to_thread(_kill_rest, uid)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for found in self._running.values():
            if found.process is not None:
                await found.process.wait()


def _kill_rest(uid: str) -> None:
    """Kill what is left of a Pod's container: its first process takes all others with it."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(POD_UID) == uid:
                process.kill()
                if process.ppid() != os.getpid():  # asyncio reaps our own children
                    left.append(process)
    psutil.wait_procs(left, timeout=10)


def _tail(log: Path) -> str:
    data = log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
    return "\n".join(data.splitlines()[-TAIL_LINES:])


@asynccontextmanager
async def kubelets(server: ApiServer, directory: Path) -> AsyncIterator[Kubelets]:
    directory.mkdir(parents=True, exist_ok=True)
    found = Kubelets(server, directory)
    running = asyncio.create_task(found.run())
    try:
        yield found
        assert not running.done(), running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await found.aclose()
        shutil.rmtree(directory, ignore_errors=True)
