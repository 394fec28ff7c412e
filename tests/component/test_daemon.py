"""What a daemon does to a state directory: to another daemon's, and to what an earlier daemon left in its own."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from minflinkd.blob.client import BlobClient
from minflinkd.blob.errors import BlobUnauthorized
from minflinkd.blob.keys import BlobKind
from minflinkd.cli.client import Client
from minflinkd.cli.endpoint import Refused
from minflinkd.cli.submission import submit
from minflinkd.config import load_config
from minflinkd.daemon import MEETING_FILE, READY_FILE, Daemon
from minflinkd.ha.embedded import StateDirectory, StateDirectoryTaken
from minflinkd.ha.meeting_point import MeetingPoint
from minflinkd.metrics.history.blocks import ROWS
from minflinkd.metrics.history.track import Resolution
from minflinkd.resourcemanager.process import ProcessLauncher
from minflinkd.runtime.errors import Consequence
from minflinkd.runtime.ids import JobId, ResourceId
from minflinkd.runtime.listening import PortTaken
from minflinkd.storage.proving import StorageUnfit
from minflinkd.taskmanager.settings import read_settings
from minflinkd.taskmanager.supervisor import TaskManager
from tests.cluster import free_port, write_job
from tests.waiting import until


async def test_a_daemon_that_is_refused_leaves_the_other_ones_address_alone(tmp_path: Path) -> None:
    """Clients find the leading daemon by this file (A10)."""
    config = load_config(None, {}, {"process.working-dir": str(tmp_path)})
    daemon = Daemon(config, {})
    leader = StateDirectory(daemon.state_directory)
    leader.take()
    ready = daemon.state_directory / READY_FILE
    ready.write_text("{}")
    with pytest.raises(StateDirectoryTaken):
        await daemon.start()
    assert ready.read_text() == "{}"
    leader.release()


def _daemon(state: Path, **options: str) -> Daemon:
    settings = {"process.working-dir": str(state), "rest.port": "0", "resourcemanager.standby-taskmanagers": "0"}
    return Daemon(load_config(None, {}, settings | options), {})


async def _rpc_port_of_a_daemon(state: Path, **options: str) -> int:
    async with _daemon(state, **options) as daemon:
        return daemon.rpc.endpoint[1]


async def test_task_managers_find_the_next_daemon_at_the_port_of_the_last(tmp_path: Path) -> None:
    """TaskManagers find the next daemon even if the option allows any free port (R7, A6)."""
    first = await _rpc_port_of_a_daemon(tmp_path)
    assert await _rpc_port_of_a_daemon(tmp_path) == first


async def test_a_daemon_takes_no_port_that_its_options_do_not_allow(tmp_path: Path) -> None:
    """The configuration has priority over the port of the last daemon (R7)."""
    first = await _rpc_port_of_a_daemon(tmp_path)
    other = first + 1 if first < 65000 else first - 100
    assert await _rpc_port_of_a_daemon(tmp_path, **{"jobmanager.rpc.port": f"{other}-{other + 50}"}) != first


async def test_a_daemon_without_an_election_is_the_leader_that_it_shows(tmp_path: Path) -> None:
    """A10, A13: the epoch grows with each start, and there are no standbys."""
    epochs = []
    for _ in range(2):
        async with _daemon(tmp_path) as daemon, Client(daemon.info.url) as client:
            shown = (await client.overview()).minflinkd
            assert shown.leader is not None
            assert (shown.leader.url, shown.standbys) == (daemon.info.url, ())
            assert f"minflinkd_leadership_epoch {shown.leader.epoch}.0" in daemon.metrics.render().decode()
            epochs.append(shown.leader.epoch)
    assert epochs[1] > epochs[0]


@pytest.mark.parametrize("option", ["execution.checkpointing.dir", "high-availability.storageDir"])
async def test_a_daemon_does_not_start_where_a_check_of_its_storage_fails(tmp_path: Path, option: str) -> None:
    """The error names the check, in the words of docs/storage.md."""
    daemon = _daemon(tmp_path, **{option: "memory://minflinkd", "storage.memory.writable": "true"})
    with pytest.raises(StorageUnfit, match=r"memory:.* cannot be written: the check exclusive-create failed"):
        await daemon.start()


@pytest.mark.parametrize("content", [b"", b"{", b'{"port":0,"version":"0.0.1"}'])
async def test_an_unreadable_or_foreign_meeting_point_is_replaced(tmp_path: Path, content: bytes) -> None:
    """If the file is torn, only the TaskManagers that would come back to its port are lost (A12)."""
    (tmp_path / MEETING_FILE).write_bytes(content)
    port = await _rpc_port_of_a_daemon(tmp_path)
    assert msgspec.json.decode((tmp_path / MEETING_FILE).read_bytes(), type=MeetingPoint).port == port


async def test_two_clusters_with_one_blob_directory_delete_nothing_of_each_other(tmp_path: Path) -> None:
    """A BlobServer deletes the blobs of jobs that it does not know. It knows those of its own cluster only (B7)."""
    shared = {"blob.storage.directory": str(tmp_path / "blobs")}
    job = JobId("1" * 32)
    async with _daemon(tmp_path / "one", **shared) as one:
        async with Client(one.rest.url) as client, await client.blob_server() as blobs:
            key = await blobs.put_bytes(job, b"an artifact", BlobKind.PERMANENT)
        async with _daemon(tmp_path / "other", **shared) as other:
            await other.blobs.clean_up()
        async with Client(one.rest.url) as client, await client.blob_server() as blobs:
            assert await blobs.get_bytes(job, key) == b"an artifact"
        assert len(list((tmp_path / "blobs").iterdir())) == 2


async def test_blobs_are_for_task_managers_and_for_whoever_may_use_the_endpoint(tmp_path: Path) -> None:
    """Parts of messages that travel as blobs are protected as well as the messages (E40)."""
    async with _daemon(tmp_path) as daemon:
        (tmp_path / "tm").mkdir()
        daemon._task_manager_command(ResourceId("tm-1"), tmp_path / "tm")
        of_task_manager = TaskManager(read_settings(tmp_path / "tm" / "taskmanager.json"))._client
        key = await of_task_manager.put_bytes(None, b"part of a message", BlobKind.TRANSIENT)
        await of_task_manager.aclose()
        async with Client(daemon.rest.url) as client, await client.blob_server() as of_user:
            assert await of_user.get_bytes(None, key) == b"part of a message"
        async with BlobClient(daemon.blobs.url) as of_nobody:
            with pytest.raises(BlobUnauthorized, match="GET /blobs/access"):
                await of_nobody.get_bytes(None, key)


async def test_a_daemon_that_does_not_come_up_leaves_the_task_managers_of_the_last_one_to_the_next(
    tmp_path: Path,
) -> None:
    """The HTTP port is taken, which is not the fault of the warm sessions (R7, A6)."""
    await _rpc_port_of_a_daemon(tmp_path)  # TaskManagers find the next daemon there
    resource_id = ResourceId("tm-000000000001")
    earlier = ProcessLauncher(
        directory=tmp_path / "taskmanagers",
        command=lambda *_: ["sleep", "60"],
        on_exit=lambda *_: None,
    )
    await earlier.start(resource_id)
    before = earlier.living()
    await earlier.aclose()
    launcher = ProcessLauncher(directory=tmp_path / "taskmanagers", command=lambda *_: [], on_exit=lambda *_: None)
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            with pytest.raises(PortTaken, match=port):
                await _rpc_port_of_a_daemon(tmp_path, **{"rest.port": port})
        assert await launcher.adopt() == before
    finally:
        await launcher.adopt()
        await launcher.stop(resource_id, kill=True)
        await launcher.aclose()


async def test_a_submission_that_waits_is_refused_when_the_daemon_ends(tmp_path: Path) -> None:
    """The sender hears why, and that it may submit again. Nothing of it stays, and no traceback (issue 15, 9)."""
    (tmp_path / "clicks.py").write_text("def clean(inputs, params):\n    return inputs['s']\n")
    vertices = {
        "s": {"source": {"format": "rate"}},
        "c": {"inputs": ["s"], "python": "clicks:clean"},
        "out": {"inputs": ["c"], "sink": {"format": "parquet", "path": "/data/out"}},
    }
    job = write_job(tmp_path / "job.json", {"name": "clicks", "artifacts": ["clicks.py"], "vertices": vertices})
    options = {"resourcemanager.driver": "standalone", "jobmanager.rpc.port": str(free_port())}
    daemon = _daemon(tmp_path / "state", **options)

    async def under_way() -> bool:
        return bool(daemon.dispatcher._submitting)

    await daemon.start()
    with capture_logs() as logs:
        async with Client(daemon.rest.url) as client:
            submission = asyncio.create_task(submit(client, job, params={}, tell=lambda _: None))
            await until(under_way, "the submission is under way")
            async with asyncio.timeout(3):
                await daemon.aclose()
            with pytest.raises(Refused) as refused:
                await submission
    assert (refused.value.info().code, refused.value.info().consequence) == ("daemon-stopping", Consequence.RETRYABLE)
    assert [line for line in logs if line["log_level"] in ("error", "warning")] == []
    assert [path for path in tmp_path.rglob("*") if path.parent.name in ("jobs", "ha") and path.is_file()] == []
    assert not [path for path in (tmp_path / "state").rglob("*") if path.is_file() and "blobs" in path.parts]


async def test_all_else_ends_though_the_address_file_cannot_be_removed(tmp_path: Path) -> None:
    """Each part of a daemon ends, whatever happens to the others."""
    settings = {"process.working-dir": str(tmp_path), "rest.port": "0", "resourcemanager.standby-taskmanagers": "0"}
    daemon = Daemon(load_config(None, {}, settings), {})
    await daemon.start()
    ready = tmp_path / READY_FILE
    ready.unlink()
    ready.mkdir()
    with capture_logs() as logs:
        await daemon.aclose()
    assert "a part of the daemon did not end well" in [line["event"] for line in logs]
    assert not daemon.rest.running
    following = StateDirectory(tmp_path)
    following.take()
    following.release()


async def test_the_next_daemon_goes_on_with_the_metrics_of_the_last(tmp_path: Path) -> None:
    """What was measured until its end is there again (E16)."""
    assert await until(lambda: int(time.time()) // 5 % ROWS > 5)  # the five slots before are in one block with this one
    slot = int(time.time()) // 5
    async with _daemon(tmp_path) as daemon:
        daemon.metrics.history.cluster.put(slot - 5, [7, 3, 2, 1, 0.5, 40.0, 0.0, 0.1, 2])
    async with _daemon(tmp_path) as daemon:
        after = daemon.metrics.history.cluster
        assert await until(lambda: after.values(Resolution.FINE, 0, slot - 5, slot - 4) == [7])
        assert after.values(Resolution.COARSE, 4, (slot - 5) // 12, (slot - 5) // 12 + 1) == [0.5]
