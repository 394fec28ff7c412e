"""What servers of databases have in common: files that their own user may read, and a client that asks."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar

from tests.servers.process import Server


class DatabaseServer(Server):
    """Keeps its files outside the test's directory, which its user may not enter. `kill` deletes them.

    `user`: who runs it if the tests run as root, as whom such servers refuse to run.
    """

    durable = False
    user: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._data: Path | None = None

    def fresh(self) -> Path:
        """Return a new directory for its files."""
        self._data = Path(tempfile.mkdtemp(prefix=f"minflinkd-{self.name.lower()}-"))
        if os.geteuid() == 0:
            shutil.chown(self._data, self.user)
        return self._data

    async def said(self, *command: str) -> list[str]:
        """Run a client, and return the lines that it prints."""
        process = await asyncio.create_subprocess_exec(
            *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, error = await process.communicate()
        assert process.returncode == 0, error.decode()
        return out.decode().splitlines()

    async def answers(self) -> bool:
        try:
            return await self.ask("SELECT 1") == ["1"]
        except AssertionError:
            return False

    async def ask(self, sql: str) -> list[str]:
        """Run the SQL. Return the lines of the answer, with columns separated by `|`."""
        raise NotImplementedError

    async def kill(self) -> None:
        await super().kill()
        if self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)
