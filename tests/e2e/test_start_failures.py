"""TaskManagers that cannot start, and what the process driver says of their ends. Supervisors and children are real."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from minflinkd.cli.exits import ExitCode
from minflinkd.config import load_config
from minflinkd.resourcemanager.process import ProcessLauncher
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.runtime.ids import ResourceId
from minflinkd.taskmanager.settings import DaemonAddress, settings_of, write_settings

TM = ResourceId("tm-000000000001")
NEEDED = ("bash", "sh", "env", "uname", "dirname", "basename", "cat", "ls", "ps", "readlink", "tr", "nohup")


class Host:
    """A driver whose TaskManagers find no daemon. `exits` has the reasons why they ended."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.options: dict[str, str] = {}
        self.exits: asyncio.Queue[str] = asyncio.Queue()
        self.driver = ProcessLauncher(
            directory=base / "taskmanagers",
            command=self.command,
            on_exit=lambda _, reason: self.exits.put_nowait(reason),
        )

    def command(self, resource_id: ResourceId, directory: Path, _: TaskManagerSize | None) -> list[str]:
        secret = self.base / "cluster.secret"
        secret.write_text("s" * 64)
        secret.chmod(0o600)
        settings = settings_of(
            load_config(None, {}, self.options),
            resource_id=resource_id,
            daemon=DaemonAddress(host="127.0.0.1", port=9, secret_file=secret),  # nobody is there
            directory=directory,
            registration_timeout=600.0,
        )
        write_settings(settings, directory / "taskmanager.json")
        return [sys.executable, "-m", "minflinkd.taskmanager", "--config", str(directory / "taskmanager.json")]

    async def why_it_ended(self) -> str:
        await self.driver.start(TM)
        async with asyncio.timeout(180):
            return await self.exits.get()


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path)
    yield host
    await host.driver.stop_all()
    await host.driver.aclose()


def is_start_failure(reason: str, why: str) -> bool:
    return reason == f"its process ended with exit code 1: its session does not start: {why}"


async def test_without_java_the_reason_says_so(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason comes at once, in one line, and not after the timeout of a start (R5)."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in NEEDED:
        if (found := shutil.which(name)) is not None:
            (programs / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    why = "no Java was found: it must be on the PATH, or JAVA_HOME must name it"
    assert is_start_failure(await host.why_it_ended(), why)


async def test_without_a_python_package_the_reason_names_it(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installation is incomplete (R5)."""
    hidden = tmp_path / "hidden" / "pyspark"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\")\n")
    monkeypatch.setenv("PYTHONPATH", f"{hidden.parent}{os.pathsep}{os.getcwd()}")
    reason = await host.why_it_ended()
    assert "its session does not start" in reason
    assert "No module named 'pyspark'" in reason
    assert "\n" not in reason


async def test_a_heap_larger_than_the_machine_is_named_by_its_option(host: Host) -> None:
    """The reason names the wrong option of taskmanager.memory (R5)."""
    host.options = {"taskmanager.memory.heap.size": "921600 GiB"}
    reason = await host.why_it_ended()
    assert "taskmanager.memory.heap.size (921600 GiB) is more than this machine's memory" in reason
    assert "\n" not in reason


@pytest.mark.slow
async def test_what_the_jvm_refuses_is_said_in_its_own_words(host: Host) -> None:
    """The heap stands for one that the machine has but the process may not have (R5)."""
    host.options = {"taskmanager.spark.conf": '{"spark.driver.memory": "900t"}'}
    reason = await host.why_it_ended()
    assert is_start_failure(
        reason,
        "the JVM does not start with spark.driver.memory 900t (taskmanager.spark.conf): "
        "Could not reserve enough space for 966367641600KB object heap",
    )


async def test_a_taskmanager_started_by_hand_gives_up_when_it_was_told_to(tmp_path: Path) -> None:
    """No daemon takes its registration within taskmanager.registration.timeout. Only its log stays (R15)."""
    secret = tmp_path / "secret"
    secret.write_text("s" * 64)
    secret.chmod(0o600)
    settings = {
        "jobmanager.rpc.port": 9,  # nobody is there
        "process.working-dir": tmp_path / "state",
        "security.secret-file": secret,
        "taskmanager.registration.timeout": "1 s",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "minflinkd", "taskmanager", "--resource-id", "tm-alone"),
        *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(180):
        _, err = await process.communicate()
    assert process.returncode == ExitCode.UNREACHABLE
    assert "no ResourceManager took the registration" in err.decode().splitlines()[-1]
    assert [entry.name for entry in (tmp_path / "state" / "taskmanagers" / "tm-alone").iterdir()] == ["log"]
