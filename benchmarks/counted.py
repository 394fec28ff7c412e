"""Storages that count the requests of all clients: a NameNode with its JMX, an S3 server with its metrics."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from benchmarks import s3a
from tests.servers.hdfs import Hdfs
from tests.servers.s3 import SeaweedFS

FILES = "files created"
ENTRIES = "files and directories created"
OPERATIONS = "NameNode operations"
TRANSACTIONS = "edit-log transactions"
REQUESTS = "requests"

Counts = Counter[str]
_QUIET = 6.0  # seconds without a request: longer than pauses of background work
_SETTLING = 300.0  # seconds for the storage to become quiet


class Counted(ABC):
    """One storage that both sides use. Names in `counts` with a dot are parts of those without."""

    name: str
    spark: Mapping[str, str]  # settings
    minflinkd: Mapping[str, str]

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def kill(self) -> None: ...

    @abstractmethod
    def uri(self, path: str, *, hadoop: bool = False) -> str:
        """Return the URI of a path; with `hadoop`, as Hadoop's clients name it."""

    @abstractmethod
    async def counts(self) -> Counts:
        """Return the counts since its start."""

    async def settled(self) -> Counts:
        """Return `counts` when there are no more requests."""
        async with asyncio.timeout(_SETTLING):
            seen, before = await self.counts(), None
            while seen != before:
                await asyncio.sleep(_QUIET)
                seen, before = await self.counts(), seen
        return seen


class CountedHdfs(Counted):
    name = "HDFS"
    spark: Mapping[str, str] = {}
    minflinkd: Mapping[str, str] = {}

    def __init__(self, directory: Path) -> None:
        self._server = Hdfs(directory)

    async def start(self) -> None:
        await self._server.start()

    async def kill(self) -> None:
        await self._server.kill()

    def uri(self, path: str, *, hadoop: bool = False) -> str:
        return f"{self._server.authority_uri}/{path}"

    async def counts(self) -> Counts:
        """Return the calls of clients, as `rpc.<method>`.

        Calls of DataNodes are left out, and so are renewals of leases, which every writing client makes each half a
        minute.
        """
        activity = await self._server.bean("service=NameNode,name=NameNodeActivity")
        log = await self._server.bean("service=NameNode,name=FSNamesystem")
        detailed = await self._server.bean(
            f"service=NameNode,name=RpcDetailedActivityForPort{self._server.port}",
        )
        methods = {name.removesuffix("NumOps"): int(n) for name, n in detailed.items() if name.endswith("NumOps")}
        calls = Counter({f"rpc.{name}": n for name, n in methods.items() if _is_of_clients(name)})
        figures = {
            FILES: int(activity["CreateFileOps"]),
            ENTRIES: int(activity["FilesCreated"]),
            OPERATIONS: calls.total(),
            TRANSACTIONS: int(log["LastWrittenTransactionId"]),
        }
        return Counter({**figures, **calls})


class CountedS3(Counted):
    name = "S3"
    spark: Mapping[str, str] = {}

    def __init__(self, directory: Path) -> None:
        self._server = SeaweedFS(directory)

    async def start(self) -> None:
        await self._server.start()
        self.spark = s3a.settings(self._server)
        self.minflinkd = {f"storage.s3.{key}": value for key, value in self._server.options.items()}

    async def kill(self) -> None:
        await self._server.kill()

    def uri(self, path: str, *, hadoop: bool = False) -> str:
        return f"{'s3a' if hadoop else 's3'}://{self._server.bucket}/{path}"

    async def counts(self) -> Counts:
        """Return requests as `request.<kind>`, with SeaweedFS's kinds: HEAD counts as GET."""
        kinds = Counter[str]()
        for kind, n in _S3_REQUESTS.findall(await self._server.metrics()):
            kinds[f"request.{kind}"] += int(n)
        return Counter({REQUESTS: kinds.total(), **kinds})


_S3_REQUESTS = re.compile(
    rf'^SeaweedFS_s3_request_total\{{bucket="{SeaweedFS.bucket}",code="\d+",type="(\w+)"\}} (\d+)$', re.MULTILINE
)
_OF_DATANODES = {"SendHeartbeat", "BlockReceivedAndDeleted", "BlockReport", "RegisterDatanode", "VersionRequest"}


def _is_of_clients(method: str) -> bool:
    counted_again = method.startswith(("Deferred", "Overall"))
    failed = method.endswith("Exception")  # such calls are counted by their method as well
    return not (counted_again or failed) and method not in _OF_DATANODES and method != "RenewLease"
