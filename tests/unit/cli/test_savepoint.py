"""`minflinkd savepoint inspect`, which needs no daemon, and the options of `run` that mean a restore."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.savepoints import write_savepoint
from minflinkd.cli.main import main
from minflinkd.cli.run import restore_of
from minflinkd.filemerging.writer import PhysicalFileWriter
from minflinkd.rpc.snapshot import PlanNode, StateFile
from minflinkd.storage.registry import Storages
from tests.unit.checkpoint.builders import A1, JOB, A, completed, name, snapshot

NODES = (
    PlanNode(number=0, stateful=True, vertex="totals", kind="Aggregate", fingerprint="f"),
    PlanNode(number=0, stateful=False, vertex="numbers", kind="rate"),
)


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    async def write() -> str:
        storages = Storages({})
        root = storages.at(str(tmp_path / "job"))
        async with PhysicalFileWriter(root, lambda n: name(7, A1, n)) as writer:
            files = (StateFile("state/0/0/4_x.zip", await writer.append(b"z" * 5000)),)
            await writer.commit()
        task = replace(snapshot(7, A, A1), files=files, operators=NODES, source_offsets={"numbers": '{"offset":30}'})
        found: CompletedCheckpoint = completed(7, task)
        target = await write_savepoint(root, found, storages.at(str(tmp_path)))
        await storages.aclose()
        return target.path

    return Path(asyncio.run(write()))


def test_a_savepoint_is_shown_with_its_vertices_state_and_offsets(savepoint: Path) -> None:
    """`minflinkd savepoint inspect PATH` shows vertices, state and offsets (C24)."""
    shown = CliRunner().invoke(main, ["savepoint", "inspect", str(savepoint), "--verify"])
    assert shown.exit_code == 0, shown.output
    for text in (
        f"savepoint 7 of job {JOB}",
        "totals",
        "Aggregate",
        "4.9 KiB",
        '{"offset":30}',
        "all checksums are right",
    ):
        assert text in shown.output
    shown = CliRunner().invoke(main, ["savepoint", "inspect", f"{savepoint}/_metadata", "--json"])
    (task,) = json.loads(shown.output)["tasks"]
    assert [(node["vertex"], node["bytes"]) for node in task["operators"]] == [("totals", 5000), ("numbers", 0)]
    assert task["offsets"] == {"numbers": '{"offset":30}'}


def test_what_is_missing_or_damaged_has_an_exit_code_of_its_own(savepoint: Path, tmp_path: Path) -> None:
    """The exit code is 4 if nothing is there, and 2 for something that cannot be used (E11)."""
    assert CliRunner().invoke(main, ["savepoint", "inspect", str(tmp_path / "nowhere")]).exit_code == 4
    (file,) = savepoint.glob("*.seg")
    file.unlink()
    assert CliRunner().invoke(main, ["savepoint", "inspect", str(savepoint)]).exit_code == 0
    missing = CliRunner().invoke(main, ["savepoint", "inspect", str(savepoint), "--verify"])
    assert missing.exit_code == 2
    assert file.name in missing.output
    (savepoint / "_metadata").write_bytes(b"minflinkd-checkpoint 99 \n{}")
    later = CliRunner().invoke(main, ["savepoint", "inspect", str(savepoint)])
    assert later.exit_code == 2
    assert "format version 99" in later.output


def test_the_options_of_run_stand_for_the_restore_of_a_job_file(tmp_path: Path) -> None:
    """A path without a scheme is on this machine (C24)."""
    assert restore_of(None, claim=False, allowed=[]) is None
    assert restore_of("s3://bucket/savepoint-1", claim=True, allowed=["allow-changed-state"]) == {
        "path": "s3://bucket/savepoint-1",
        "mode": "claim",
        "allow-changed-state": True,
    }
    found = restore_of("savepoint-1", claim=False, allowed=[])
    assert found is not None
    assert found["path"] == str(Path.cwd() / "savepoint-1")
    with pytest.raises(click.UsageError, match="--claim and --allow-changed-state say how"):
        restore_of(None, claim=True, allowed=["allow-changed-state"])
