"""The daemon's HTTP endpoint as typed calls, for the command line, the demo and tests.

Retries what is harmless to retry: queries, and a submission under its job id (R25).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec
import stamina

from minflinkd.cli import endpoint, event_stream
from minflinkd.cli.credentials import Credentials
from minflinkd.cli.endpoint import FIRST_PAUSE, LONGEST_PAUSE, PATIENCE, DaemonUnreachable, Endpoint, Refused
from minflinkd.cli.event_stream import ServerEvent
from minflinkd.rest.schemas import (
    BlobAccess,
    Blobs,
    CheckpointResult,
    Checkpoints,
    ClusterOverview,
    Drain,
    FailureCause,
    HandoverInfo,
    Health,
    JobExceptions,
    JobInfo,
    JobsOverview,
    JobStatusInfo,
    LoginLink,
    Logs,
    OperationResult,
    Orphans,
    RestartAccepted,
    Submitted,
    TaskManagerDetails,
    TaskManagers,
    Triggered,
)
from minflinkd.rest.schemas.documents import BackfillRequest
from minflinkd.rest.schemas.verification import VerificationResult, VerifiedCheckpoint
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind, MinflinkError
from minflinkd.runtime.ids import IdSource
from minflinkd.runtime.tls import Tls, TlsFiles

if TYPE_CHECKING:
    from minflinkd.blob.client import BlobClient

T = TypeVar("T")

ATTEMPTS = 4
_LOG_OFFSET = "X-Log-Offset"  # header: the position of a part of a log in the whole log
POLL = 0.1  # seconds between two checks of a triggered operation
SWEEP_TIMEOUT = 600.0  # seconds; all checkpoints are listed
SUBMIT_TIMEOUT = 300.0  # seconds; Spark analyses the job first, perhaps on a TaskManager that has yet to start


class OperationFailed(MinflinkError):
    """A triggered operation has failed. Carries the daemon's error code."""

    def __init__(self, cause: FailureCause) -> None:
        super().__init__(cause.stack_trace)
        self.cause = cause

    def info(self) -> ErrorInfo:
        return ErrorInfo(code=self.cause.kind, message=self.message, consequence=Consequence.REFUSED)


class NotVerified(OperationFailed):
    """It could not be found out whether checkpoints are whole. Another try may succeed."""

    def info(self) -> ErrorInfo:
        return msgspec.structs.replace(super().info(), consequence=Consequence.RETRYABLE)


class Client:
    """Talks to the daemon that leads. `timeout` applies to one request, in seconds.

    `url` may name several daemons, separated by commas. The client tries them in turn until one answers, and a request
    waits up to `patience` seconds for a leader (A13). Every call raises DaemonUnreachable and Refused.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        attempts: int = ATTEMPTS,
        patience: float = PATIENCE,
        ca_file: str | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`ca_file`: the CA of an `https` daemon. `credentials`: by default those that the command line finds.

        Raises UnusableCertificate.
        """
        self._ca_file = ca_file
        self._credentials = credentials or Credentials()
        tls = self._credentials.tls(ca_file)
        self._endpoint = Endpoint(url, timeout=timeout, tls=tls, credentials=self._credentials)
        self._timeout = timeout
        self._attempts = attempts
        self._patience = patience

    @property
    def url(self) -> str:
        """The daemon that answered last."""
        return self._endpoint.url

    async def __aenter__(self) -> Self:
        await self._endpoint.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._endpoint.aclose()

    async def overview(self) -> ClusterOverview:
        return await self.get("/overview", ClusterOverview)

    async def health(self) -> Health:
        return await self.get("/health", Health)

    async def jobs(self) -> JobsOverview:
        return await self.get("/jobs/overview", JobsOverview)

    async def job(self, job_id: str, *, patience: float | None = None) -> JobInfo:
        return await self.get(f"/jobs/{job_id}", JobInfo, patience=patience)

    async def status(self, job_id: str) -> str:
        return (await self.get(f"/jobs/{job_id}/status", JobStatusInfo)).status

    async def exceptions(self, job_id: str, *, most: int | None = None) -> JobExceptions:
        """Return the last failures; `most`: how many."""
        query = "" if most is None else f"?maxExceptions={most}"
        return await self.get(f"/jobs/{job_id}/exceptions{query}", JobExceptions)

    async def checkpoints(self, job_id: str, *, patience: float | None = None) -> Checkpoints:
        return await self.get(f"/jobs/{job_id}/checkpoints", Checkpoints, patience=patience)

    def events(
        self,
        path: str,
        *,
        patience: float = event_stream.PATIENCE,
        lost: Callable[[MinflinkError, float], None] = event_stream.ignore,
    ) -> AsyncGenerator[ServerEvent, None]:
        """Yield events of `/events` or `/jobs/ID/events`, as `event_stream.events` does."""
        return event_stream.events(self._endpoint, path, patience=patience, lost=lost)

    async def task_managers(self) -> TaskManagers:
        return await self.get("/taskmanagers", TaskManagers)

    async def task_manager(self, resource_id: str) -> TaskManagerDetails:
        return await self.get(f"/taskmanagers/{resource_id}", TaskManagerDetails)

    async def drain(self, resource_id: str, *, undo: bool = False) -> Drain:
        """Begin to drain a TaskManager, or undo it. May be repeated."""
        path = f"/taskmanagers/{resource_id}/drain"
        return msgspec.json.decode(await self._repeat("DELETE" if undo else "POST", path), type=Drain)

    async def blobs(self, *, job: str | None = None, offset: int = 0) -> Blobs:
        """Return a part of the list: the blobs of one job, of no job (`none`), or all."""
        of_job = "" if job is None else f"&job={job}"
        return await self.get(f"/blobs?offset={offset}{of_job}", Blobs)

    async def orphans(self, *, job: str | None, dry_run: bool) -> Orphans:
        """Delete orphans and return them; with `dry_run`, return what would be deleted."""
        query = None if job is None else {"job": job}
        method = "GET" if dry_run else "DELETE"
        body = await self._repeat(method, "/storage/orphans", query=query, timeout=SWEEP_TIMEOUT)
        return msgspec.json.decode(body, type=Orphans)

    async def login_link(self) -> LoginLink:
        """Return a link that logs a browser in once."""
        return msgspec.json.decode(await self._send("POST", "/login/links"), type=LoginLink)

    def knows_also(self, urls: Iterable[str]) -> None:
        """Also try these daemons if the others do not answer."""
        self._endpoint.knows_also(urls)

    async def hand_over(self) -> int:
        """Begin to end the daemon, but not its TaskManagers. Returns the daemon's pid."""
        return msgspec.json.decode(await self._send("POST", "/cluster/handover"), type=HandoverInfo).pid

    async def is_at(self, url: str, pid: int) -> bool:
        """Whether the daemon that answers at `url` now has this pid. Does not try again."""
        client = Client(
            url,
            timeout=self._timeout,
            attempts=1,
            patience=0.0,
            ca_file=self._ca_file,
            credentials=self._credentials,
        )
        async with client as daemon:
            try:
                found = (await daemon.get("/health/live", Health)).pid
            except DaemonUnreachable:
                return False
            except Refused:
                return True
        return found in (0, pid)

    async def blob_server(self) -> BlobClient:
        """Return a client of the BlobServer, which the caller closes."""
        from minflinkd.blob.client import BlobClient  # most commands do not need it

        access = await self.get("/blobs/access", BlobAccess)
        # Its token says who this is. It would check a certificate by the CA of the cluster's processes, not of clients.
        tls = Tls(TlsFiles(ca=Path(self._ca_file))).client if self._ca_file else None
        return BlobClient(access.url, token=access.token, tls=tls)

    async def logs(self, resource_id: str | None) -> Logs:
        """Return the log files of a TaskManager; None: of the daemon."""
        return await self.get(f"{_whose(resource_id)}/logs", Logs)

    async def read_log(
        self,
        resource_id: str | None,
        name: str,
        *,
        offset: int = 0,
        length: int | None = None,
        begins: Callable[[int], None] | None = None,
    ) -> AsyncIterator[bytes]:
        """Yield a part of a log as it arrives. A negative offset counts from the end.

        `begins` is told at which offset the part begins: what was there before may not be kept any more.
        """
        query = {"offset": str(offset)} | ({} if length is None else {"length": str(length)})
        path = f"{_whose(resource_id)}/logs/{name}"
        async with self._endpoint.ask("GET", path, query=query, until=self._until()) as response:
            if response.status >= 400:
                raise endpoint.refusal(response.status, await response.read())
            if begins is not None and (first := response.headers.get(_LOG_OFFSET, "")).isdigit():
                begins(int(first))
            async for piece in response.content.iter_any():
                yield piece

    async def cancel(self, job_id: str) -> None:
        """Cancel a job. Returns when the cancellation has begun."""
        await self._send("PATCH", f"/jobs/{job_id}", query={"mode": "cancel"})

    async def checkpoint(self, job_id: str, *, full: bool = False) -> int:
        """Take a checkpoint. Returns its id when it is complete. Raises OperationFailed too.

        A `full` one refers to no file of an earlier one.
        """
        trigger_id = secrets.token_hex(16)
        path = f"/jobs/{job_id}/checkpoints"
        body = {"triggerId": trigger_id} | ({"checkpointType": "FULL"} if full else {})
        await self._repeat("POST", path, document=msgspec.json.encode(body))
        while True:
            operation = (await self._told(f"{path}/{trigger_id}", CheckpointResult)).operation
            if operation is not None:
                if operation.failure_cause is not None:
                    raise OperationFailed(operation.failure_cause)
                return operation.checkpoint_id or 0
            await asyncio.sleep(POLL)

    async def verify_checkpoints(self, job_id: str) -> tuple[VerifiedCheckpoint, ...]:
        """Let the daemon read all checkpoints of a job. Returns what it has found. Raises NotVerified too."""
        trigger_id = secrets.token_hex(16)
        path = f"/jobs/{job_id}/checkpoints/verification"
        await self._repeat("POST", path, document=msgspec.json.encode({"triggerId": trigger_id}))
        while True:
            operation = (await self._told(f"{path}/{trigger_id}", VerificationResult)).operation
            if operation is not None:
                if operation.failure_cause is not None:
                    raise NotVerified(operation.failure_cause)
                return operation.checkpoints or ()
            await asyncio.sleep(POLL)

    async def savepoint(self, job_id: str, directory: str | None) -> str:
        """Take a savepoint. Returns its URI when it is written. Raises OperationFailed too."""
        body = {"target-directory": directory}
        return await self._operation(f"/jobs/{job_id}/savepoints", f"/jobs/{job_id}/savepoints", body)

    async def stop(self, job_id: str, directory: str | None, *, drain: bool) -> str:
        """Stop the job with a savepoint. Returns its URI when it is written. Raises OperationFailed too."""
        body = {"targetDirectory": directory, "drain": drain}
        return await self._operation(f"/jobs/{job_id}/stop", f"/jobs/{job_id}/savepoints", body)

    async def dispose_savepoint(self, path: str) -> None:
        """Delete a savepoint. Returns when it is gone. Raises OperationFailed too."""
        body = msgspec.json.encode({"savepoint-path": path})
        answer = msgspec.json.decode(await self._send("POST", "/savepoint-disposal", document=body), type=Triggered)
        await self._end_of_operation(f"/savepoint-disposal/{answer.request_id}")

    async def _operation(self, trigger: str, status: str, body: dict[str, Any]) -> str:
        """Trigger an operation and wait for its end. Retries use the same trigger id, which makes them harmless."""
        trigger_id = secrets.token_hex(16)
        document = msgspec.json.encode({**body, "triggerId": trigger_id})
        await self._repeat("POST", trigger, document=document)
        return await self._end_of_operation(f"{status}/{trigger_id}")

    async def _end_of_operation(self, path: str) -> str:
        while True:
            result = await self._told(path, OperationResult)
            if result.operation is not None:
                if (cause := result.operation.failure_cause) is not None:
                    raise OperationFailed(cause)
                return result.operation.location or ""
            await asyncio.sleep(POLL)

    async def _told(self, path: str, kind: type[T]) -> T:
        """Return the status of an operation. If no daemon answers, wait for the next one: it knows the operation."""
        until = self._until()
        while True:
            try:
                return await self.get(path, kind)
            except DaemonUnreachable as error:
                if time.monotonic() >= until:
                    hint = f"GET {path} returns the outcome of the request as soon as a daemon answers"
                    raise DaemonUnreachable(error.message, hint=hint) from error
            await asyncio.sleep(POLL)

    async def submit(self, job_id: str, document: bytes, *, dry_run: bool = False, explain: bool = False) -> Submitted:
        """Submit a job. Retried until the outcome is known, which is harmless because the job already has its id.

        If the Dispatcher refuses it, there is no retry even if one might succeed: its artifacts are gone.
        """
        flags = {"dry-run": dry_run, "explain": explain}
        query = {"jobId": job_id} | {name: "true" for name, given in flags.items() if given}
        body = await self._repeat("POST", "/jobs", query=query, document=document, when=_outcome_unknown)
        return msgspec.json.decode(body, type=Submitted)

    async def backfill(self, job_id: str, asked: BackfillRequest, *, dry_run: bool = False) -> Submitted:
        """Submit the backfill of a job, as `submit` does."""
        query = {"jobId": IdSource().job()} | ({"dry-run": "true"} if dry_run else {})
        document = msgspec.json.encode(asked)
        path = f"/jobs/{job_id}/backfill"
        body = await self._repeat("POST", path, query=query, document=document, when=_outcome_unknown)
        return msgspec.json.decode(body, type=Submitted)

    async def hot_restart(self, job_id: str, document: bytes, options: Mapping[str, str]) -> RestartAccepted:
        """Start a hot restart. Returns when the new version is checked. Not retried: a second one would conflict."""
        body = await self._send("POST", f"/jobs/{job_id}/hot-restart", query=options, document=document)
        return msgspec.json.decode(body, type=RestartAccepted)

    async def rescale(self, job_id: str, wanted: Mapping[str, Mapping[str, int]]) -> None:
        """Rescale a job. Returns when the hot restart has begun. Not retried.

        `wanted` maps vertices to `lowerBound` and `upperBound`.
        """
        body = {vertex: {"parallelism": bounds} for vertex, bounds in wanted.items()}
        await self._send("PUT", f"/jobs/{job_id}/resource-requirements", document=msgspec.json.encode(body))

    async def get(
        self,
        path: str,
        kind: type[T],
        *,
        query: Mapping[str, str] | None = None,
        timeout: float = 0.0,
        patience: float | None = None,
    ) -> T:
        """Return the answer at a path, decoded as `kind`; `msgspec.Raw` leaves it undecoded.

        `timeout`: seconds, if the answer may take longer than that of other requests.
        """
        body = await self._repeat("GET", path, query=query, timeout=timeout, patience=patience)
        return msgspec.json.decode(body, type=kind)

    def _until(self, patience: float | None = None) -> float:
        return time.monotonic() + (self._patience if patience is None else patience)

    async def _repeat(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        document: bytes | None = None,
        timeout: float = 0.0,
        patience: float | None = None,
        when: Callable[[Exception], bool] = lambda error: _may_succeed_later(error),
    ) -> bytes:
        until = self._until(patience)
        async for attempt in stamina.retry_context(
            on=when,
            attempts=self._attempts,
            timeout=None,
            wait_initial=FIRST_PAUSE,
            wait_max=LONGEST_PAUSE,
            wait_jitter=FIRST_PAUSE,
        ):
            with attempt:
                return await self._send(method, path, query=query, document=document, timeout=timeout, until=until)
        raise AssertionError("stamina returns or raises")

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        document: bytes | None = None,
        timeout: float = 0.0,
        until: float | None = None,
    ) -> bytes:
        """Return the answer's body. Waits for a leader until `until`, a monotonic time."""
        async with self._endpoint.ask(
            method,
            path,
            query=query,
            document=document,
            timeout=timeout if document is None else SUBMIT_TIMEOUT,
            until=self._until() if until is None else until,
        ) as response:
            body = await response.read()
        if response.status >= 400:
            raise endpoint.refusal(response.status, body)
        return body


def _whose(resource_id: str | None) -> str:
    return "/jobmanager" if resource_id is None else f"/taskmanagers/{resource_id}"


def _may_succeed_later(error: Exception) -> bool:
    return isinstance(error, MinflinkError) and error.info().consequence is Consequence.RETRYABLE


def _outcome_unknown(error: Exception) -> bool:
    """Whether the component that decides about jobs has not answered."""
    if isinstance(error, Refused):
        answer = error.answer
        return answer.kind is Kind.CLUSTER and answer.consequence is Consequence.RETRYABLE
    return isinstance(error, DaemonUnreachable)
