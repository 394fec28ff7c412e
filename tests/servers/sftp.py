"""OpenSSH's server on loopback, for SFTP alone. Its files are plain files in a directory."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import fsspec
import psutil
import pytest

from tests.servers.process import HOST, Server

_SEPARATION = Path("/run/sshd")  # an empty directory that sshd needs if it runs as root


class Sftp(Server):
    """Lets the tests' own user in, by a key. `refused` are requests of SFTP that it answers with no permission."""

    name = "OpenSSH"
    refused: Sequence[str] = ()

    @classmethod
    def missing(cls) -> str | None:
        if _sshd() is None or shutil.which("ssh-keygen") is None:
            return "OpenSSH's server is not installed: apt-get install openssh-server"
        return None

    @property
    def files(self) -> Path:
        return self.directory / "files"

    @property
    def uri(self) -> str:
        """Return the URI of its directory."""
        return f"sftp://{getpass.getuser()}@{HOST}:{self.port}{self.files}"

    @contextlib.contextmanager
    def credentials(self) -> Iterator[None]:
        """Let this process, and those that it starts, log in: by fsspec's configuration, as operators do."""
        given = {"key_filename": str(self.directory / "user"), "look_for_keys": False, "allow_agent": False}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FSSPEC_SFTP", json.dumps(given))
            patch.setitem(fsspec.config.conf, "sftp", given)
            yield

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        self.files.mkdir(exist_ok=True)
        for name in ("host", "user"):
            if not (self.directory / name).exists():
                argv = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.directory / name))
                subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        if os.geteuid() == 0:
            _SEPARATION.mkdir(mode=0o755, exist_ok=True)
        refusing = f" -P {','.join(self.refused)}" if self.refused else ""
        lines = (
            f"ListenAddress {HOST}:{ports['main']}",
            f"HostKey {self.directory / 'host'}",
            f"AuthorizedKeysFile {self.directory / 'user.pub'}",
            f"Subsystem sftp internal-sftp{refusing}",
            *("ForceCommand internal-sftp" + refusing, "PermitRootLogin yes", "PasswordAuthentication no"),
            *("StrictModes no", "UsePAM no", "PidFile none", "UseDNS no"),
        )
        (self.directory / "sshd_config").write_text("\n".join((*lines, "")))
        sshd = _sshd()
        assert sshd is not None
        return (sshd, "-D", "-e", "-f", str(self.directory / "sshd_config"))

    async def kill(self) -> None:
        """Kill it with its connections' processes, which are in sessions of their own."""
        children = psutil.Process(self.pid).children(recursive=True) if self._process is not None else []
        await super().kill()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        await asyncio.to_thread(psutil.wait_procs, children, 10)

    async def answers(self) -> bool:
        reader, writer = await asyncio.open_connection(HOST, self.port)
        try:
            return (await reader.readline()).startswith(b"SSH-2.0")
        finally:
            writer.close()


class SftpWithoutLinks(Sftp):
    """As a server whose disk has no hard links: an exclusive create is not possible there."""

    refused = ("hardlink",)


class SftpWithFullDisk(Sftp):
    """No file may become longer than 2 MiB."""

    def command(self, ports: Mapping[str, int]) -> Sequence[str]:
        limited = "trap '' XFSZ; ulimit -f 4096; exec \"$@\""  # in units of 512 bytes
        return ("sh", "-c", limited, "sh", *super().command(ports))


def _sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
