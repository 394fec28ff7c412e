"""A real daemon asks the API server for TaskManagers, and says what keeps their Pods from running. None ever runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from minflinkd.rest.schemas import StartingInfo
from tests.cluster import FOR_TESTS, running_cluster
from tests.kubernetes.pod_cluster import PodCluster, pod_cluster
from tests.waiting import until


async def waiting(pods: PodCluster, word: str) -> StartingInfo:
    """Wait until a TaskManager is said to wait, with this word in the reason."""

    async def told() -> StartingInfo | None:
        starting = (await pods.cluster.client.overview()).minflinkd.starting
        return next((each for each in starting if word in each.waiting), None)

    return await until(told, f"a Pod that waits: {word}")


async def test_what_keeps_a_pod_from_running_reaches_whoever_looks_and_the_next_daemon_adopts_it(
    tmp_path: Path,
) -> None:
    """The scheduler's sentence, over HTTP and on the command line (R50)."""
    async with pod_cluster(tmp_path, room=0) as pods:
        sentence = "its Pod is not scheduled: 0/2 nodes are available: 2 Too many pods."
        told = await waiting(pods, "not scheduled")
        assert told.waiting == sentence
        command = ("-m", "minflinkd", "taskmanagers", "--url", pods.cluster.url)
        shown = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
        output, _ = await shown.communicate()
        assert f"{told.id} does not run yet: {sentence}" in output.decode()

        uid = pods.pod_uid(told.id)
        await pods.cluster.kill()
        await pods.cluster.start_again()
        assert (await waiting(pods, "not scheduled")).id == told.id
        assert pods.pod_uid(told.id) == uid
        assert len(pods.server.store.all("pods")) == 1


@pytest.mark.slow  # it takes most of a minute; test_api_trouble.py shows the launcher's part of it in seconds
async def test_a_daemon_comes_up_while_the_api_server_is_away(tmp_path: Path) -> None:
    """And says that it is (R50)."""
    async with pod_cluster(tmp_path, room=0) as pods:
        first = await waiting(pods, "not scheduled")
        await pods.cluster.kill()
        pods.server.go_away()
        await pods.cluster.start_again()
        await waiting(pods, "the API server of Kubernetes")
        pods.server.come_back()
        assert (await waiting(pods, "not scheduled")).id in (first.id, *_names(pods))
        assert first.id in _names(pods)


async def test_a_template_with_a_fault_keeps_the_daemon_from_starting(tmp_path: Path) -> None:
    """The message has the path inside of the template (R50)."""
    template = tmp_path / "template.yaml"
    template.write_text("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: taskmanager}]}\n")
    settings = FOR_TESTS | {
        "resourcemanager.driver": "kubernetes",
        "kubernetes.pod-template-file.taskmanager": str(template),
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": 6123,
        "security.secret-file": str(tmp_path / "secret"),
        "security.allow-unauthenticated": True,
        "execution.checkpointing.dir": f"file://{tmp_path / 'checkpoints'}",
    }
    with pytest.raises(AssertionError, match=r"spec\.containers\[0\]\.image: is missing"):
        async with running_cluster(tmp_path / "cluster", **settings):
            pytest.fail("the daemon started")


def _names(pods: PodCluster) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods.server.store.all("pods")]
