"""A BlobServer, its HA store and a TaskManager's cache on real directories, and all that can happen to them (B20).

Only time is not real: the event loop's time is moved on by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minflinkd.blob.cache import BlobCache
from minflinkd.blob.client import BlobClient
from minflinkd.blob.keys import Blob, BlobKey, BlobKind
from minflinkd.blob.server import BlobOptions, BlobServer
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.registry import Storages

T = TypeVar("T")
R = 1000.0  # in seconds
JOBS = [JobId(digit * 32) for digit in "ab"]


class MovedLoop(asyncio.SelectorEventLoop):
    """A loop whose time can be moved on."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


@dataclass
class Job:
    """A job as the daemon's job store has it."""

    keys: set[BlobKey]
    content: dict[BlobKey, bytes]
    in_use: list[BlobKey] = field(default_factory=list)  # references of tasks in the cache


class OnDisk(RuleBasedStateMachine):
    jobs = st.sampled_from(JOBS)
    contents = st.sampled_from([0, 1, 27, 100_000]).map(bytes)
    some_contents = st.lists(contents, min_size=1, max_size=3, unique=True)
    kinds = st.sampled_from(list(BlobKind))

    def __init__(self) -> None:
        super().__init__()
        self.loop = MovedLoop()
        self.root = Path(tempfile.mkdtemp(prefix="blobs-"))
        self.storages = Storages()
        self.ha = self.storages.at(str(self.root / "ha"))
        self.client = BlobClient("", retries=3, pause=0.001)
        self.submitted: dict[JobId, Job] = {}
        self.run(self.start_server())
        self.run(self.start_cache())

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(step, 2 * R))

    def together(self, *steps: Awaitable[Any]) -> list[Any]:
        async def both() -> list[Any]:
            return await asyncio.gather(*steps)

        return self.run(both())

    # --- processes -----------------------------------------------------------------------------------------------

    async def start_server(self) -> None:
        options = BlobOptions(directory=self.root / "server", retention=R, cleanup_interval=R)
        self.server = BlobServer(options=options, ha_store=self.ha)
        await self.server.start()
        self.client.url = self.server.url
        await self.server.take_stock({job_id: job.keys for job_id, job in self.submitted.items()})
        for job_id, job in self.submitted.items():
            await self.server.recover(job_id, job.keys)

    async def start_cache(self) -> None:
        self.cache = BlobCache(directory=self.root / "cache", client=self.client, ha_store=self.ha, retention=R)
        await self.cache.start()
        for job in self.submitted.values():
            job.in_use.clear()

    @rule(orderly=st.booleans(), junk=st.booleans())
    def restart_server(self, orderly: bool, junk: bool) -> None:
        """Restart the server. A crash leaves a half-written blob, and a copy without a local file."""

        async def restart() -> None:
            if not orderly:
                self.server.crash(RuntimeError("killed"))
            await self.server.aclose()
            if junk and not orderly:
                (self.root / "server" / "incoming" / ("f" * 32)).write_bytes(b"half of it")
                key = BlobKey.new(BlobKind.PERMANENT, hashlib.sha256(b"orphan").hexdigest())
                await self.ha.child(JOBS[0], str(key)).write_bytes(b"orphan")
            await self.start_server()

        self.run(restart())

    @rule(
        job=jobs,
        data=contents,
        what=st.sampled_from(["upload", "hold", "clean up", "delete job"]),
        steps=st.sampled_from([0, 1, 2, 3, 5, 8, 13, 30, 100, 300]),
    )
    def crash_during(self, job: JobId, data: bytes, what: str, steps: int) -> None:
        """Crash the server during an operation. It may be half done, and its client gets no answer."""
        if what == "hold" and job in self.submitted:
            return

        async def crash() -> None:
            doing: Coroutine[Any, Any, Any]
            match what:
                case "upload":
                    doing = self.upload(job, data)
                case "hold":  # for a submission that is not stored
                    doing = self.server.hold(job, [await self.upload(job, data)])
                case "clean up":
                    self.loop.ahead += R
                    doing = self.server.clean_up()
                case _:
                    ended = self.submitted.pop(job, None)
                    for key in ended.in_use if ended is not None else ():
                        self.cache.release(job, key)
                    await self.cache.forget_job(job)
                    doing = self.server.delete_job(job)
            task = asyncio.ensure_future(doing)
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            self.server.crash(RuntimeError("killed"))
            await self.server.aclose()
            with contextlib.suppress(MinflinkError, asyncio.CancelledError):
                await task
            await self.start_server()

        self.run(crash())

    @rule()
    def crash_cache(self) -> None:
        async def crash() -> None:
            self.cache.crash(RuntimeError("killed"))
            await self.cache.aclose()
            await self.start_cache()

        self.run(crash())

    # --- clients -------------------------------------------------------------------------------------------------

    async def upload(self, job_id: JobId, data: bytes, kind: BlobKind = BlobKind.PERMANENT) -> BlobKey:
        file = self.root / "mine"
        file.write_bytes(data)
        return BlobKey.parse((await self.client.upload(job_id, file, kind)).key)

    @rule(job=jobs, data=contents, kind=kinds)
    def upload_one(self, job: JobId, data: bytes, kind: BlobKind) -> None:
        self.run(self.upload(job, data, kind))

    @rule(job=jobs, data=contents)
    def upload_breaks_off(self, job: JobId, data: bytes) -> None:
        """Begin an upload whose client dies in the middle."""

        async def body() -> AsyncIterator[bytes]:
            yield data
            raise ConnectionResetError

        async def put() -> None:
            digest = hashlib.sha256(data + b"?").hexdigest()
            async with aiohttp.ClientSession(self.server.url) as http:
                with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                    await http.put(f"/blobs/{job}", params={"sha256": digest}, data=body())

        self.run(put())

    @rule(job=jobs, data=contents, complete=st.booleans())
    def upload_set(self, job: JobId, data: bytes, complete: bool) -> None:
        """Upload part of a set, or a whole set. The client dies before the rest, or before the submission (B6)."""

        async def put() -> None:
            url, params = (
                f"{self.server.url}/blobs/{job}",
                {"sha256": hashlib.sha256(data).hexdigest(), "set": "7" * 32},
            )
            async with aiohttp.request("PUT", url, params=params, data=data) as response:
                assert response.status == 201
            if complete:
                await self.client.complete(job, "7" * 32)

        self.run(put())

    @initialize(contents=some_contents)
    def submit_first(self, contents: list[bytes]) -> None:
        self.submit(JOBS[0], contents, 0.5, cleaning=None)

    @rule(
        job=jobs,
        contents=some_contents,
        pause=st.sampled_from([0.0, 0.5, 0.95]),
        cleaning=st.sampled_from([None, "first", "last"]),
    )
    def submit(self, job: JobId, contents: list[bytes], pause: float, cleaning: str | None) -> None:
        """Submit a job before the retention ends, perhaps while the cleanup runs."""
        if job in self.submitted:
            return
        paths = {}
        for i, content in enumerate(contents):
            paths[str(i)] = self.root / f"artifact-{i}"
            paths[str(i)].write_bytes(content)
        refs = self.run(self.client.upload_all(job, paths))
        keys = {BlobKey.parse(ref.key): contents[int(ref.name)] for ref in refs}
        self.loop.ahead += pause * R
        steps: list[Awaitable[Any]] = [self.server.hold(job, keys.keys())]
        if cleaning is not None:
            steps.insert(0 if cleaning == "first" else 1, self.server.clean_up())
        missing = next(found for found in self.together(*steps) if isinstance(found, frozenset))
        assert missing == frozenset(), "a job submitted within the retention finds all of them"
        self.submitted[job] = Job(set(keys), keys)

    # --- jobs ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), clean=st.booleans(), late=st.booleans())
    def fail_and_recover(self, data: st.DataObject, clean: bool, late: bool) -> None:
        """Fail and recover a job. A late recovery still finds every blob that has a copy."""
        job_id = data.draw(st.sampled_from(sorted(self.submitted)))
        self.server.failed(job_id)
        for _ in range(3 if late else 0):
            self.clean_up(R)
        steps: list[Awaitable[Any]] = [self.server.recover(job_id, self.submitted[job_id].keys)]
        self.together(*steps, *([self.server.clean_up()] if clean else []))

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), more=st.booleans())
    def finish(self, data: st.DataObject, more: bool) -> None:
        """End a job, perhaps while somebody uploads something for it again."""
        job_id = data.draw(st.sampled_from(sorted(self.submitted)))
        job = self.submitted.pop(job_id)
        for key in job.in_use:
            self.cache.release(job_id, key)
        steps: list[Awaitable[Any]] = [self.server.delete_job(job_id), self.cache.forget_job(job_id)]
        if more:
            steps.append(self._upload_or_not(job_id))
        self.together(*steps)

    async def _upload_or_not(self, job_id: JobId) -> None:
        with contextlib.suppress(MinflinkError):
            await self.upload(job_id, b"late")

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), lost=st.sampled_from(["nothing", "local", "flipped", "copy"]))
    def deploy(self, data: st.DataObject, lost: str) -> None:
        """Let a task take the job's artifacts. One of the two files of each may be lost or damaged before."""
        job_id = data.draw(st.sampled_from(sorted(self.submitted)))
        job = self.submitted[job_id]
        for key in sorted(job.keys):
            local, copy = (self.root / where / job_id / str(key) for where in ("server", "ha"))
            if copy.exists() and lost == "local":
                local.unlink()
            elif copy.exists() and lost == "flipped" and local.stat().st_size:
                flip(local)
            elif local.exists() and lost == "copy" and copy.stat().st_size:
                flip(copy)
            assert self.run(self.cache.get(job_id, key)).read_bytes() == job.content[key]
            assert self.run(self.server.read(job_id, key)) == job.content[key]
            job.in_use.append(key)
        if lost == "copy":  # the cache has asked the server, which now checks the copy
            self.run(self.until_mended(job_id, job))

    async def until_mended(self, job_id: JobId, job: Job) -> None:
        for key in job.keys:
            copy = self.root / "ha" / job_id / str(key)
            if copy.read_bytes() != job.content[key]:
                await self.server._mender.mend(Blob(job_id, key))  # the server does this once in every cleanup interval
            assert copy.read_bytes() == job.content[key]

    @precondition(lambda self: any(job.in_use for job in self.submitted.values()))
    @rule(data=st.data())
    def end_task(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(name for name, job in self.submitted.items() if job.in_use)))
        self.cache.release(job_id, self.submitted[job_id].in_use.pop())

    # --- time ----------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.3 * R, R, 2.5 * R]))
    def clean_up(self, seconds: float) -> None:
        self.loop.ahead += seconds
        self.together(self.server.clean_up(), self.cache.clean())

    @invariant()
    def what_a_job_holds_is_there(self) -> None:
        for job_id, job in self.submitted.items():
            for key, content in job.content.items():
                assert self.run(self.server.read(job_id, key)) == content
                assert (self.root / "ha" / job_id / str(key)).exists()
            for key in job.in_use:
                assert (self.root / "cache" / job_id / str(key)).read_bytes() == job.content[key]

    def teardown(self) -> None:
        """At the end, everything that no job needs is gone, and no temporary file is left."""
        try:
            self.clean_up(1.01 * R)  # incomplete sets end, and files that nobody knows are found
            for _ in range(2):
                self.clean_up(1.01 * R)
            wanted = {f"{job_id}/{key}" for job_id, job in self.submitted.items() for key in job.keys}
            used = {f"{job_id}/{key}" for job_id, job in self.submitted.items() for key in job.in_use}
            assert files(self.root / "server") == wanted
            assert files(self.root / "ha") == wanted
            assert files(self.root / "cache") == used
            self.what_a_job_holds_is_there()
        finally:
            self.run(self.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.root)

    async def close(self) -> None:
        await self.cache.aclose()
        await self.server.aclose()
        await self.client.aclose()
        await self.storages.aclose()


def files(directory: Path) -> set[str]:
    found = (path.relative_to(directory) for path in directory.rglob("*") if not path.is_dir())
    return {str(path) for path in found if path.parts[0] != "corrupt"}


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


TestOnDisk = OnDisk.TestCase
_QUICK = settings(
    max_examples=12,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes with real files
)
TestOnDisk.settings = _QUICK


@pytest.mark.slow
class TestOnDiskForLonger(OnDisk.TestCase):  # type: ignore[misc]  # hypothesis makes the base
    settings = settings(_QUICK, max_examples=150, stateful_step_count=40)
