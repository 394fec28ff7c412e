"""Which schema paths the records of `transformWithState` contain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minflinkd.taskmanager.child.protocol import SnapshotFailed
from minflinkd.taskmanager.session.state import schema_paths, snapshot
from minflinkd.taskmanager.session.state.schema_paths import StateNotRestored

SCHEMA = "_stateSchema/default/0_6103b9ce-cf02-443b-8c61-ff2d3322c64b"
PROPERTIES = '{"timeMode":"NoTime","stateVariables":[{"stateName":"größe"}]}'


def record(*paths: str, operator: int = 0) -> str:
    """Return a record as Spark 4.3 writes it."""
    values: dict[str, Any] = {
        "operatorInfo": {"operatorId": operator, "operatorName": "transformWithStateExec"},
        "stateStoreInfo": [
            {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2, "stateSchemaFilePaths": list(paths)}
        ],
        "operatorPropertiesJson": PROPERTIES,
    }
    return "v2\n" + json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def laid_out(base: Path, *records: str) -> Path:
    """Write a checkpoint directory at micro-batch 1. It has these records of operator 0, one for each micro-batch."""
    checkpoint = base / "checkpoint"
    files = {
        "metadata": "{}",
        **{f"offsets/{batch}": "v1\n{}" for batch in (0, 1)},
        **{f"commits/{batch}": "v1\n{}" for batch in (0, 1)},
        f"state/0/{SCHEMA}": "schema",
        **{f"state/0/_metadata/v2/{batch}": text for batch, text in enumerate(records)},
    }
    for name, text in files.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(text)
    return checkpoint


def test_a_snapshot_says_nothing_of_where_it_was_taken(tmp_path: Path) -> None:
    """Two attempts have the same files, byte for byte, so the second one uploads none (C11, C14)."""
    found = []
    for attempt in ("a", "b"):
        home = tmp_path / attempt
        text = record(f"file:{home}/checkpoint/state/0/{SCHEMA}")
        checkpoint = laid_out(home, text, text)
        files, _ = snapshot.link(checkpoint, 1, home / "snapshot")
        sizes = {file.path: file.size for file in files}
        taken = home / "snapshot" / "state" / "0" / "_metadata" / "v2"
        assert sizes["state/0/_metadata/v2/1"] == (taken / "1").stat().st_size
        assert (checkpoint / "state" / "0" / "_metadata" / "v2" / "1").read_text() == text
        found.append([(taken / name).read_bytes() for name in ("0", "1")])
    assert found[0] == found[1]
    assert found[0][0].decode() == record(SCHEMA)


@pytest.mark.parametrize("before", [SCHEMA, f"file:/gone/attempts/1/checkpoint/state/0/{SCHEMA}", f"/gone/{SCHEMA}"])
def test_a_laid_out_checkpoint_names_its_own_schemas(tmp_path: Path, before: str) -> None:
    """Older snapshots name a directory that is gone; their paths are replaced too. Links stay as they are (C14)."""
    checkpoint = laid_out(tmp_path, record(before))
    place = checkpoint / "state" / "0" / "_metadata" / "v2" / "0"
    linked = tmp_path / "own-copy"
    linked.hardlink_to(place)
    (place.parent / ".0.crc").write_text("of the old content")
    schema_paths.localize(checkpoint)
    assert place.read_text() == record(f"file:{checkpoint}/state/0/{SCHEMA}")
    assert linked.read_text() == record(before)
    assert [path.name for path in place.parent.iterdir()] == ["0"]


def test_a_record_that_is_right_is_left_alone(tmp_path: Path) -> None:
    """A query that continues in its directory has nothing to replace (C14)."""
    checkpoint = laid_out(tmp_path, record(f"file:{tmp_path}/checkpoint/state/0/{SCHEMA}"))
    place = checkpoint / "state" / "0" / "_metadata" / "v2" / "0"
    before = place.stat().st_ino
    schema_paths.localize(checkpoint)
    assert place.stat().st_ino == before


@pytest.mark.parametrize("text", ["v3\n{}", "v2\n[]", "v2\n{", record("file:/gone/elsewhere")])
def test_a_record_in_an_unknown_form_is_refused(tmp_path: Path, text: str) -> None:
    """No query starts from it, and it becomes part of no checkpoint, because no query could start from that (C14)."""
    checkpoint = laid_out(tmp_path, text, text)
    with pytest.raises(StateNotRestored, match=r"_metadata/v2/0 cannot be read"):
        schema_paths.localize(checkpoint)
    with pytest.raises(SnapshotFailed, match="cannot be read"):
        snapshot.link(checkpoint, 1, tmp_path / "snapshot")
    assert not (tmp_path / "snapshot").exists()
