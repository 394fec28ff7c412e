"""What every storage backend must do, as tests (S5): subclass `StorageConformance` and provide two fixtures.

    class TestMyStorage(StorageConformance):
        @pytest.fixture
        def storage(self) -> Storage: ...   # the backend itself, with the smallest part size that it allows

        @pytest.fixture
        def prefix(self) -> str: ...   # an empty directory of the backend, fresh for each test

and, if the backend talks to a server, `ServerLossConformance` with a third one, a server that the test may kill:

        @pytest.fixture
        def server(self) -> Server: ...

Needs pytest with pytest-asyncio in auto mode, and the mark `slow` for long tests. Nothing else in minflinkd imports
this package.
"""

from __future__ import annotations

from minflinkd.storage.conformance.contract import StorageConformance
from minflinkd.storage.conformance.objects import CLOCKS, MIB, ODD_NAMES, content, names, part_size, read, write
from minflinkd.storage.conformance.server_loss import Server, ServerLossConformance

__all__ = [
    "CLOCKS",
    "MIB",
    "ODD_NAMES",
    "Server",
    "ServerLossConformance",
    "StorageConformance",
    "content",
    "names",
    "part_size",
    "read",
    "write",
]
