"""State directories of earlier versions are read by this one, and one of a later version is left alone.

`tests/golden` keeps the directory that each version writes. To repair a test here: go on reading what was written. Only
while a version is unreleased may its golden files be written again: `python -m tests.golden`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minflinkd import __version__
from minflinkd.checkpoint import metadata
from minflinkd.checkpoint.metadata import CompletedCheckpoint, MetadataTooNew
from minflinkd.checkpoint.offsets import Offsets
from minflinkd.checkpoint.store import CheckpointStore
from minflinkd.cli.client import Client
from minflinkd.config import load_config
from minflinkd.daemon import Daemon
from minflinkd.dispatcher.job_store import JobStore, StoredJob, StoredOutcome, StoredResult, StoredTrigger
from minflinkd.dispatcher.versions import Versions
from minflinkd.ha import state_format
from minflinkd.ha.meeting_point import MeetingPoint
from minflinkd.ha.state_format import StateDirectoryNewer
from minflinkd.jobmaster.job_history import JobHistory
from minflinkd.resourcemanager.process import Identity
from minflinkd.rpc.jobs import RestartState
from minflinkd.runtime.errors import Consequence
from minflinkd.runtime.units import decode_unit, encode_unit
from minflinkd.storage.registry import Storages
from tests.cluster import free_port
from tests.golden.differences import differences
from tests.golden.files import HERE, STATE, versions
from tests.golden.state import CANCELLED, ENDED, FULL, OVER, RUNNING, UNDER_WAY, write_state
from tests.waiting import until

RECORDS = {
    r"jobs/jobs/\w+\.json": StoredJob,
    r"jobs/versions/\w+/\d+\.json": Versions,
    r"jobs/results/\w+\.json": StoredResult,
    r"jobs/triggers/\w+/\w+\.json": StoredTrigger,
    r"jobs/operations/\w+/\w+\.json": StoredOutcome,
    r"checkpoints/\w+/offsets\.json": Offsets,
    r"checkpoints/\w+/history\.json": JobHistory,
    r"checkpoints/\w+/chk-\d+/_metadata": CompletedCheckpoint,
    r"taskmanagers/[\w-]+/identity\.json": Identity,
    r"rpc\.json": MeetingPoint,
}
OTHERS = r"state-version|epoch|cluster\.id|jobs/cancelled/\w+\.json|checkpoints/\w+/(ids/\d+|.*\.seg)"


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


GOLDEN = [(version, name) for version in versions() for name in sorted(content(HERE / version / STATE))]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory as the last version left it."""
    return shutil.copytree(HERE / versions()[-1] / STATE, tmp_path / "state")


@pytest.fixture
async def storages() -> AsyncIterator[Storages]:
    opened = Storages()
    yield opened
    await opened.aclose()


def daemon(state: Path) -> Daemon:
    options = {
        "process.working-dir": str(state),
        "rest.port": "0",
        "resourcemanager.driver": "standalone",
        "jobmanager.rpc.port": str(free_port()),
    }
    return Daemon(load_config(None, {}, options), {})


async def test_the_golden_directory_of_this_version_is_what_it_writes(tmp_path: Path) -> None:
    """Until its release, it follows each change (A15c). To repair: `python -m tests.golden`."""
    await write_state(tmp_path)
    assert content(tmp_path) == content(HERE / __version__ / STATE)


@pytest.mark.parametrize(("version", "name"), GOLDEN)
def test_a_record_of_an_earlier_version_is_read_with_all_that_it_says(version: str, name: str) -> None:
    """What is read, and written again, says the same: no field was renamed or dropped (A15c)."""
    data = (HERE / version / STATE / name).read_bytes()
    kinds = [kind for pattern, kind in RECORDS.items() if re.fullmatch(pattern, name)]
    if not kinds:
        assert re.fullmatch(OTHERS, name), "say in RECORDS what reads this file"
        return
    read: Any
    if kinds == [CompletedCheckpoint]:
        read, data = metadata.decode(data), data.partition(b"\n")[2]
    else:
        read = msgspec.json.decode(data, type=kinds[0], dec_hook=decode_unit)
    written = msgspec.json.decode(msgspec.json.encode(read, enc_hook=encode_unit))
    assert not list(differences(msgspec.json.decode(data), written))


@pytest.mark.parametrize("version", versions())
async def test_the_job_store_of_an_earlier_version_has_its_jobs_and_results(version: str, storages: Storages) -> None:
    """Every record is found where it was put: none is set aside, and a hot restart goes on where it was (A15c, H8)."""
    store = JobStore(storages.at(str(HERE / version / STATE / "jobs")))
    jobs = {job.job_id: job for job in await store.jobs() if isinstance(job, StoredJob)}
    assert set(jobs) == {RUNNING, FULL, CANCELLED}
    assert jobs[CANCELLED].cancelled
    history = jobs[RUNNING].history()
    assert history.restart is not None
    assert history.restart.phase is RestartState.STARTING
    assert history.restart.old is not None
    assert (history.current.graph, jobs[RUNNING].graph) == (history.restart.target, history.restart.target)
    results = await store.results(await store.result_ids())
    assert [result.details.job_id for result in results if isinstance(result, StoredResult)] == [ENDED]
    assert [trigger.trigger_id for trigger in await store.triggers()] == [UNDER_WAY]
    assert await store.outcome(RUNNING, OVER) is not None


@pytest.mark.parametrize("version", versions())
async def test_the_checkpoints_of_an_earlier_version_can_be_restored(version: str, storages: Storages) -> None:
    """Both are complete, no file of theirs is an orphan, and the next id is a new one (A15c, C22)."""
    directory = HERE / version / STATE / "checkpoints" / RUNNING
    store = CheckpointStore(storages.at(str(directory)), job_id=RUNNING, epoch=2)
    recovered = await store.recover()
    assert [checkpoint.checkpoint_id for checkpoint in recovered.completed] == [1, 2]
    assert not recovered.set_aside
    assert await store.orphans(recovered) == ()
    for checkpoint in recovered.completed:
        assert all((directory / file).exists() for file in checkpoint.physical_files())


async def test_a_daemon_takes_over_the_state_directory_of_an_earlier_version(state: Path) -> None:
    """Jobs, results and the cancelled job are there; the directory is of this version from then on (A15c)."""
    for record in (*state.glob(f"jobs/*/{FULL}.json"), *state.glob(f"jobs/versions/{FULL}/*")):
        record.unlink()  # it has every field set, so it is no job that could run
    async with daemon(state) as running, Client(running.rest.url) as client:

        async def recovered() -> bool:
            found = {job.jid: job.state for job in (await client.jobs()).jobs}
            return found.get(CANCELLED) == "CANCELED" and found.get(ENDED) == "FINISHED" and RUNNING in found

        await until(recovered, timeout=20)
        details = await client.job(RUNNING)
        assert (details.name, details.minflinkd.hot_restarts[0].number) == ("clicks", 2)
        latest = (await client.checkpoints(RUNNING)).latest.completed
        assert latest is not None
        assert latest.id == 2
    assert (state / "epoch").read_text() == "2\n"
    assert (state / state_format.FILE).read_bytes() == state_format.content()


@pytest.mark.parametrize("by", ["", " 9.1.0"])
async def test_a_daemon_leaves_the_state_directory_of_a_later_version_as_it_is(state: Path, by: str) -> None:
    """It writes nothing, and says which version to start and what else can be done (A15c)."""
    (state / state_format.FILE).write_text(f"{state_format.FORMAT + 1}{by}\n")
    (state / "lock").touch()
    before = content(state)
    refused = daemon(state)
    with pytest.raises(StateDirectoryNewer, match=f"reads formats up to {state_format.FORMAT}") as error:
        await refused.start()
    await refused.aclose()
    assert content(state) == before
    info = error.value.info()
    assert (info.code, info.consequence) == ("state-directory-newer", Consequence.REFUSED)
    assert f"start minflinkd {by.strip() or 'a later version'} or later again" in info.hint
    assert "a copy from before the upgrade" in info.hint


async def test_checkpoints_of_a_later_version_are_left_as_they_are(state: Path, storages: Storages) -> None:
    """The storage of checkpoints may be shared, without a state directory. They are not taken for damaged (A15c)."""
    file = state / "checkpoints" / RUNNING / "chk-2" / "_metadata"
    later = metadata.MAGIC + b" %d " % (metadata.VERSION + 1)
    file.write_bytes(file.read_bytes().replace(metadata.MAGIC + b" %d " % metadata.VERSION, later, 1))
    before = content(state)
    store = CheckpointStore(storages.at(str(state / "checkpoints" / RUNNING)), job_id=RUNNING, epoch=2)
    with pytest.raises(MetadataTooNew, match=f"format version {metadata.VERSION + 1}") as error:
        await store.recover()
    assert "the minflinkd that wrote it, or a later one" in error.value.hint
    assert content(state) == before
