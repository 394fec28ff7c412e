"""Which directory below `sources` belongs to which source. Exchanges have none and are not counted there (C11, C25)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minflinkd.rpc.plan_sources import EXCHANGE, lines_with_logs, source_logs
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.taskmanager.session.restore.placement import place
from minflinkd.taskmanager.session.state.snapshot import CommitEntry, OffsetEntry, closure, cut_off


def plan(*sources: str) -> tuple[PlanNode, ...]:
    """Return a plan with an aggregate, then these sources in this order.

    x, y and z are exchanges, the others are files. A name that occurs twice is read twice.
    """
    nodes = [PlanNode(number=0, stateful=True, vertex="total", kind="Aggregate", fingerprint="f")]
    for number, name in enumerate(dict.fromkeys(sources)):
        lines = tuple(line for line, read in enumerate(sources) if read == name)
        kind = EXCHANGE if name in "xyz" else "FileSource"
        nodes.append(PlanNode(number=number, stateful=False, vertex=name, kind=kind, lines=lines))
    return tuple(nodes)


@pytest.mark.parametrize(
    ("sources", "logs", "lines"),
    [
        ("f", {0: 0}, {0: 0}),
        ("x", {}, {}),
        ("xf", {1: 0}, {1: 0}),
        ("fx", {0: 0}, {0: 0}),
        ("fxg", {0: 0, 2: 1}, {0: 0, 2: 1}),
        ("xyfzg", {2: 0, 4: 1}, {2: 0, 4: 1}),
        ("xfxgf", {1: 0, 2: 1}, {1: 0, 3: 1, 4: 0}),
    ],
)
def test_directories_are_counted_without_exchanges(sources: str, logs: dict[int, int], lines: dict[int, int]) -> None:
    """Exchanges do not count, whatever the order, and however often a source is read (C11)."""
    assert source_logs(plan(*sources)) == logs
    assert lines_with_logs(plan(*sources)) == lines


def test_a_snapshot_takes_the_log_of_a_file_source_after_an_exchange() -> None:
    """The second line of the offset log belongs to the first directory (C11)."""
    files = {"metadata", "offsets/0", "commits/0", "sources/0/0", "sources/0/1", "sources/0/2"}
    offsets = OffsetEntry({}, ('{"position":7}', '{"logOffset":1}'))
    found = closure(files, 0, offsets, CommitEntry(0, {}), lambda _: (), lines_with_logs(plan(*"xf")))
    assert found == files - {"sources/0/2"}


def test_a_query_that_goes_on_is_cut_off_in_the_right_directories(tmp_path: Path) -> None:
    """Whatever was listed after the cut is removed; whatever was read before it stays (H3)."""
    lay_out(tmp_path, 4, '{"position":7}', '{"logOffset":1}', '{"logOffset":2}')
    for log in (0, 1):
        for entry in range(4):
            write(tmp_path / "sources" / str(log) / str(entry))
    cut_off(tmp_path, 4, lines_with_logs(plan(*"xfg")))
    assert names(tmp_path / "sources" / "0") == ["0", "1"]
    assert names(tmp_path / "sources" / "1") == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("old", "new", "before", "after", "lines"),
    [
        ("xfg", "fgx", "fg", "fg", "fgx"),  # only the exchange has moved
        ("xfg", "gxf", "fg", "gf", "gxf"),
        ("xfyg", "gyfx", "fg", "gf", "gyfx"),
        ("xf", "xgf", "f", "-f", "x-f"),  # g is new
    ],
)
def test_source_logs_move_with_their_sources(
    tmp_path: Path, old: str, new: str, before: str, after: str, lines: str
) -> None:
    """A log is named after its source here, in the directory that the old query gave it (C25)."""
    lay_out(tmp_path, 4, *(json.dumps({"of": name}) for name in old))
    for log, name in enumerate(before):
        write(tmp_path / "sources" / str(log) / name)
    assert place(tmp_path, 4, plan(*old), plan(*new), allow_non_restored=False)
    found = [names(tmp_path / "sources" / str(log)) for log in range(len(after))]
    assert found == [[] if name == "-" else [name] for name in after]
    offsets = (tmp_path / "offsets" / "4").read_text().splitlines()[2:]
    assert offsets == ["-" if name == "-" else json.dumps({"of": name}) for name in lines]


def lay_out(checkpoint: Path, batch: int, *offsets: str) -> None:
    write(checkpoint / "offsets" / str(batch), "\n".join(["v1", "{}", *offsets]))
    write(checkpoint / "commits" / str(batch), 'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a"]]}}')
    record = json.dumps({"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}})
    write(checkpoint / "state" / "0" / "_metadata" / "metadata", f"v1\n{record}")


def write(file: Path, text: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.exists() else []
