"""A whole daemon that wants certificates of its clients, and the command line with one (E42)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from minflinkd.blob.keys import BlobKind
from minflinkd.cli.client import Client
from minflinkd.cli.credentials import Credentials
from minflinkd.cli.endpoint import DaemonUnreachable
from minflinkd.cli.main import main
from minflinkd.config import load_config
from minflinkd.daemon import Daemon
from tests.cluster import free_port
from tests.tls import CaInTest


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


def options(state: Path, ca: CaInTest, clients: Path) -> dict[str, str]:
    files = ca.files("daemon")
    certificates = {
        f"security.ssl.{which}.{name}": str(getattr(files, name))
        for which in ("internal", "rest")
        for name in ("certificate", "key", "ca")
    }
    return certificates | {
        "process.working-dir": str(state),
        "rest.port": "0",
        "resourcemanager.driver": "standalone",
        "jobmanager.rpc.port": str(free_port()),
        "security.ssl.internal.enabled": "true",
        "security.ssl.rest.enabled": "true",
        "security.ssl.rest.client-certificates": "required",
        "security.ssl.rest.client-ca": str(clients / "client-ca.pem"),
        "security.socket-directory": "none",
    }


async def test_the_commands_that_are_documented_let_a_client_in(tmp_path: Path) -> None:
    """`tls client`, `token create --certificate`, and the two options of a client, in its environment."""
    state, clients = tmp_path / "state", tmp_path / "clients"
    state.mkdir(mode=0o700)
    made = json.loads(invoke("tls", "client", str(clients), "ci", "--json"))
    invoke("token", "create", "ci", "--role", "submit", "--certificate", "CN:ci", "--state-dir", str(state))
    environ = {
        "HOME": str(tmp_path),
        "MINFLINKD_CERT_FILE": made["certificate"],
        "MINFLINKD_KEY_FILE": made["key"],
    }
    ca = CaInTest(tmp_path / "tls")
    async with Daemon(load_config(None, {}, options(state, ca, clients)), {}) as daemon:
        async with Client(daemon.rest.url, ca_file=str(ca.ca), credentials=Credentials(environ=environ)) as client:
            assert (await client.jobs()).jobs == ()
            # The BlobServer checks certificates by the CA of the cluster's processes, so it must not see this one.
            async with await client.blob_server() as blobs:
                key = await blobs.put_bytes(None, b"x", BlobKind.TRANSIENT)
                assert await blobs.get_bytes(None, key) == b"x"
        assert [(each.user, each.size) for each in daemon.blobs.uploads()] == [("ci", 1)]
        nothing = Credentials(environ={"HOME": str(tmp_path)})
        with capture_logs() as logs:
            async with Client(daemon.rest.url, ca_file=str(ca.ca), credentials=nothing, attempts=1) as client:
                with pytest.raises(DaemonUnreachable, match="this one shows none"):
                    await client.health()
        assert any("the client shows no certificate" in str(line.get("error")) for line in logs)
