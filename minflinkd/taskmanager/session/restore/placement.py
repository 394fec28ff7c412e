"""Moves the state of another version of the job's query to where the new one looks for it (C25), or refuses it.

A restored checkpoint directory is renumbered before its query starts: `state/<operator>`, `sources/<log>`, the lines of
the offset log, and the numbers in the commit log and in the operators' own records. Its files may be hard links into a
snapshot: they are moved or replaced, and never written to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from minflinkd.checkpoint.state_matching import (
    ALLOW_CHANGED_HERE,
    Placement,
    Reason,
    StateMeaningChanged,
    StateNotMatched,
    all_fit,
    match_nodes,
)
from minflinkd.rpc.plan_sources import source_lines, source_logs
from minflinkd.rpc.snapshot import PlanNode, without_meaning
from minflinkd.taskmanager.session.state import snapshot
from minflinkd.taskmanager.session.state.operators import USER_STATE

# Spark's names for the operators of a kind, in the records next to their state. State of a kind that is not here cannot
# be moved: the records of `transformWithState`, for example, hold paths.
_RECORDED = {
    "Aggregate": {"stateStoreSave", "sessionWindowStateStoreSaveExec"},
    "Distinct": {"stateStoreSave"},
    "Deduplicate": {"dedupe"},
    "DeduplicateWithinWatermark": {"dedupeWithinWatermark"},
    "Join": {"symmetricHashJoin"},
    "GlobalLimit": {"globalLimit"},
    "FlatMapGroupsInPandasWithState": {"applyInPandasWithState"},
}


def refuse_another_meaning(old: Sequence[PlanNode], new: Sequence[PlanNode], *, allow_non_restored: bool) -> None:
    """Raise StateMeaningChanged if the state would mean something else in the new version.

    The check before deployment may have had no checkpoint that records what the state means. Other misfits are found
    later.
    """
    try:
        match_nodes(old, new, allow_non_restored=allow_non_restored, verdicts=all_fit(new))
    except StateMeaningChanged as error:
        reasons = [replace(reason, hint=ALLOW_CHANGED_HERE) for reason in error.reasons]
        raise StateMeaningChanged(reasons) from None
    except StateNotMatched:
        pass


def place(
    checkpoint: Path, batch: int, old: Sequence[PlanNode], new: Sequence[PlanNode], *, allow_non_restored: bool
) -> bool:
    """Move state and offsets to where the new query looks for them. Returns whether anything had to be moved.

    Types are not compared here: Spark does that when the query starts, and `rehearsal` has made it do so before. Raises
    StateNotMatched, with the directory unchanged.
    """
    old, new = without_meaning(old), without_meaning(new)
    if not old or old == new or _not_recorded(old, new):
        return False
    placement = match_nodes(old, new, allow_non_restored=allow_non_restored, verdicts=all_fit(new))
    if placement.in_place:
        return False
    _check(checkpoint, batch, old, new, placement)
    _renumber(checkpoint / "state", placement.operators, _renumber_record)
    had, has = source_logs(tuple(old)), source_logs(tuple(new))
    logs = {has[new]: had[old] for new, old in placement.sources.items() if new in has and old in had}
    _renumber(checkpoint / "sources", logs, lambda *_: None)
    before = {node.number: node.offset_lines[0] for node in old if not node.stateful}
    lines = {  # line of the new query -> line of the old one; None: a source that is new
        line: before[placement.sources[node.number]] if node.number in placement.sources else None
        for line, node in source_lines(tuple(new)).items()
    }
    for entry in _entries(checkpoint / "offsets"):
        _replace(entry, _moved_offsets(entry.read_text("utf-8"), lines))
    for entry in _entries(checkpoint / "commits"):
        _replace(entry, _moved_commit(entry.read_text("utf-8"), placement.operators))
    return True


def _not_recorded(old: Sequence[PlanNode], new: Sequence[PlanNode]) -> bool:
    """Whether the only difference is that the old nodes lack operators with `transformWithState`.

    Checkpoints of older versions of minflinkd neither name nor count those.
    """
    here, there = _without_user_state(new), _without_user_state(old)
    return len(there) == len(old) and len(here) < len(new) and here == there


def _without_user_state(nodes: Sequence[PlanNode]) -> list[PlanNode]:
    named = (node for node in nodes if not node.kind.startswith(USER_STATE))
    return [msgspec.structs.replace(node, number=0) if node.stateful else node for node in named]


def _check(
    checkpoint: Path, batch: int, old: Sequence[PlanNode], new: Sequence[PlanNode], placement: Placement
) -> None:
    """Raise StateNotMatched unless the numbers are certainly those that Spark gave and will give."""
    kinds = {node.number: node.kind for node in old if node.stateful}
    commit = snapshot.parse_commit((checkpoint / "commits" / str(batch)).read_text("utf-8"))
    if commit.stores.keys() != {str(number) for number in kinds}:
        raise StateNotMatched(
            [Reason(f"Spark keeps state of {len(commit.stores)} operators, but {len(kinds)} were recorded")]
        )
    if all(a == b for a, b in placement.operators.items()) and len(placement.operators) == len(kinds):
        return  # only sources have come, gone or moved
    if max(sum(node.kind == "Join" for node in nodes) for nodes in (old, new)) > 1:
        raise StateNotMatched([Reason("operators have moved, and Spark may order several joins as it likes")])
    for number in sorted(placement.operators.values()):
        recorded = _operator_name(checkpoint / "state" / str(number))
        if recorded not in _RECORDED.get(kinds[number], ()):
            raise StateNotMatched([Reason(f"operators have moved, and the state of {kinds[number]} cannot be")])


def _operator_name(directory: Path) -> str:
    """Return the operator's name as Spark recorded it; "" if the record's form is not one that can be renumbered."""
    try:
        version, _, body = (directory / "_metadata" / "metadata").read_text("utf-8").partition("\n")
        record = json.loads(body) if version == "v1" else {}
    except (OSError, ValueError):
        return ""
    return str(record.get("operatorInfo", {}).get("operatorName", ""))


def _renumber(root: Path, numbers: Mapping[int, int], record: Callable[[Path, int], None]) -> None:
    """Rename directories `<old>` to `<new>`, and remove all others."""
    if not root.exists():
        return
    before = root.with_name(f".{root.name}.before")
    root.rename(before)
    root.mkdir()
    for new, old in numbers.items():
        if (before / str(old)).exists():
            (before / str(old)).rename(root / str(new))
            if new != old:
                record(root / str(new), new)
    snapshot.remove(before)


def _renumber_record(directory: Path, number: int) -> None:
    path = directory / "_metadata" / "metadata"
    version, _, body = path.read_text("utf-8").partition("\n")
    record: dict[str, Any] = json.loads(body)
    record["operatorInfo"] = record["operatorInfo"] | {"operatorId": number}
    _replace(path, f"{version}\n{json.dumps(record, separators=(',', ':'))}")


def _moved_offsets(text: str, lines: Mapping[int, int | None]) -> str:
    entry = snapshot.parse_offsets(text)
    moved = []
    for line in range(len(lines)):
        old = lines[line]
        offset = entry.offsets[old] if old is not None and old < len(entry.offsets) else None
        moved.append("-" if offset is None else offset)
    return "\n".join([*text.split("\n")[:2], *moved])


def _moved_commit(text: str, operators: Mapping[int, int]) -> str:
    version, _, body = text.partition("\n")
    values: dict[str, Any] = json.loads(body)
    if stores := values.get("stateUniqueIds"):
        values["stateUniqueIds"] = {
            str(new): stores[str(old)] for new, old in sorted(operators.items()) if str(old) in stores
        }
    return f"{version}\n{json.dumps(values, separators=(',', ':'))}"


def _entries(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.name.isdigit()] if directory.exists() else []


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, "utf-8")
    new.replace(path)
