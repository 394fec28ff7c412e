"""Jobs from a Python script: built with `minflinkd.jobgraph.api`, checked and submitted as by `minflinkd run`.

from minflinkd.client import Job

job = Job("clicks", params={"minutes": 60})
clicks = job.source("clicks", format="json", path="/data/clicks", schema="user STRING, time TIMESTAMP")
clicks.sink("out", format="parquet", path="/data/out")
job.dry_run()                    # raises InvalidJobGraph with every fault
running = job.submit()           # to the daemon at $MINFLINKD_URL, or at http://127.0.0.1:8081
running.wait(timeout=600)        # until it has ended; raises JobEndedBadly

Calls block. They also work where an event loop is already running (in a notebook).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import stamina

from minflinkd.cli.client import Client
from minflinkd.cli.connection import DEFAULT_URL
from minflinkd.cli.submission import submit_document
from minflinkd.cli.watch import follow
from minflinkd.jobgraph import api
from minflinkd.jobgraph.document import JobDocument
from minflinkd.jobgraph.places import Url, is_url
from minflinkd.rest.schemas import JobInfo, Submitted
from minflinkd.runtime.errors import Consequence, MinflinkError

__all__ = ["Job", "JobEndedBadly", "NotEndedYet", "SubmittedJob"]

R = TypeVar("R")
REQUEST_TIMEOUT = 30.0  # seconds for one request; a submission waits for its analysis


class JobEndedBadly(MinflinkError):
    """The awaited job is FAILED or CANCELED; the message has the cause."""

    code = "job-ended-badly"


class NotEndedYet(MinflinkError):
    """The awaited job is still running after the timeout."""

    code = "job-not-ended"
    consequence = Consequence.RETRYABLE


@dataclass(frozen=True)
class SubmittedJob:
    """A job that a daemon has accepted. Every call raises DaemonUnreachable, and Refused if the daemon refuses it."""

    id: str
    url: str  # of the daemon

    def info(self) -> JobInfo:
        """Return what `GET /jobs/:jobid` answers."""
        return _carried_out(self.url, lambda client: client.job(self.id))

    @property
    def state(self) -> str:
        """RUNNING, FINISHED, ..."""
        return self.info().state

    def wait(self, timeout: float | None = None) -> JobInfo:
        """Wait until the job is FINISHED, for at most `timeout` seconds. The daemon may be away for up to a minute.

        Raises JobEndedBadly, and NotEndedYet after the timeout.
        """

        async def ended(client: Client) -> JobInfo:
            try:
                async with asyncio.timeout(timeout):
                    job = await follow(client, self.id, lambda *_: None)
            except TimeoutError as error:
                raise NotEndedYet(
                    f"job {self.id} has not ended within {timeout:g} s", hint="it runs on; wait again, or cancel() it"
                ) from error
            if job.state != "FINISHED":
                cause = (await client.exceptions(self.id)).root_exception if job.state == "FAILED" else None
                raise JobEndedBadly(f"job {self.id} ({job.name}) is {job.state}" + (f": {cause}" if cause else ""))
            return job

        return _carried_out(self.url, ended)

    def cancel(self) -> None:
        """Cancel the job. Returns when the cancellation has begun; `wait` then raises JobEndedBadly."""
        _carried_out(self.url, lambda client: client.cancel(self.id))


class Job(api.Job):
    """A job to check with or submit to a daemon.

    `url` is the daemon's HTTP endpoint, by default $MINFLINKD_URL or this machine's daemon. If there are several
    daemons, list all, separated by commas. $MINFLINKD_CA_FILE names the CA of an https URL, and $MINFLINKD_CERT_FILE
    and $MINFLINKD_KEY_FILE a certificate that says who you are.

    `base` is the directory to which paths of artifacts are relative, by default the current one; a URL ends in `/`.
    """

    def dry_run(self, *, url: str | None = None, base: Path | str | None = None) -> None:
        """Have the daemon check the job as for `submit`, and Spark its SQL and schemas. Nothing is started.

        Raises InvalidJobGraph with every fault, DaemonUnreachable, Refused.
        """
        self._submit(url, base, dry_run=True)

    def submit(
        self,
        *,
        url: str | None = None,
        base: Path | str | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> SubmittedJob:
        """Check the job, upload its artifacts, and return when it is accepted, or with `wait` when it is FINISHED.

        Raises what `dry_run` raises, and with `wait` also what SubmittedJob.wait raises, which gets `timeout`. A
        refused job leaves nothing behind.
        """
        accepted = self._submit(url, base, dry_run=False)
        job = SubmittedJob(accepted.jobid, _url(url))
        if wait:
            job.wait(timeout)
        return job

    def _submit(self, url: str | None, base: Path | str | None, *, dry_run: bool) -> Submitted:
        document = JobDocument(self.document(), base=_base(base))
        return _carried_out(
            _url(url), lambda client: submit_document(client, document, dry_run=dry_run, tell=lambda _: None)
        )


def _base(given: Path | str | None) -> Path | Url:
    if isinstance(given, str) and is_url(given):
        return Url(given)
    return Path(given or ".").absolute()


def _url(given: str | None) -> str:
    return given or os.environ.get("MINFLINKD_URL") or DEFAULT_URL


def _carried_out(url: str, body: Callable[[Client], Coroutine[Any, Any, R]]) -> R:
    async def connected() -> R:
        async with Client(url, timeout=REQUEST_TIMEOUT, ca_file=os.environ.get("MINFLINKD_CA_FILE")) as client:
            return await body(client)

    with _SILENT_RETRIES:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(connected())
        with ThreadPoolExecutor(1, thread_name_prefix="minflinkd client") as thread:  # this thread has a running loop
            return thread.submit(asyncio.run, connected()).result()


class _SilentRetries:
    """Keeps stamina from logging each retry: a script only needs the exception, if all retries fail.

    The hooks belong to the process. Of several concurrent calls, the first one removes them and the last one restores
    them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._hooks: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        with self._lock:
            self._calls += 1
            if self._calls == 1:
                self._hooks = stamina.instrumentation.get_on_retry_hooks()
                stamina.instrumentation.set_on_retry_hooks([])

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._calls -= 1
            if self._calls == 0:
                stamina.instrumentation.set_on_retry_hooks(self._hooks)


_SILENT_RETRIES = _SilentRetries()
