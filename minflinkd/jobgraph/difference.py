"""The differences between two versions of a job, as a person would put them. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from minflinkd.jobgraph.model import JobGraph, Struct
from minflinkd.runtime.units import encode_unit


class Change(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class VertexChange(Struct, frozen=True):
    vertex: str
    change: Change
    fields: tuple[str, ...] = ()  # the vertex's fields that have changed


class SettingChange(Struct, frozen=True):
    """`before` and `after` are JSON, or empty if the setting is not set there."""

    path: str  # `params.minutes`, `parallelism`, `artifacts.flights.py`
    before: str = ""
    after: str = ""


_APART = frozenset({"vertices", "restore"})  # the former are compared one by one; the latter concerns only the start
_BY_NAME = ("params", "spark", "checkpointing", "restart-strategy", "autoscaler", "resources")


def vertex_changes(old: JobGraph, new: JobGraph) -> tuple[VertexChange, ...]:
    """Return the changes in the order of the new version, then the vertices that it no longer has."""
    before = {vertex.id: vertex for vertex in old.vertices}
    after = {vertex.id: vertex for vertex in new.vertices}
    changes = []
    for name, vertex in after.items():
        if name not in before:
            changes.append(VertexChange(vertex=name, change=Change.ADDED))
        elif vertex != before[name]:
            left, right = _fields(before[name]), _fields(vertex)
            fields = tuple(f for f in sorted({*left, *right}) if left.get(f) != right.get(f))
            changes.append(VertexChange(vertex=name, change=Change.CHANGED, fields=fields))
    changes += [VertexChange(vertex=name, change=Change.REMOVED) for name in before if name not in after]
    return tuple(changes)


def setting_changes(old: JobGraph, new: JobGraph) -> tuple[SettingChange, ...]:
    """Return the changes of everything except the vertices, one path per change."""
    before, after = _settings(old), _settings(new)
    return tuple(
        SettingChange(path=path, before=_json(before.get(path)), after=_json(after.get(path)))
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    )


def _settings(graph: JobGraph) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in _fields(graph).items():
        if name in _APART:
            continue
        if name == "artifacts":  # their keys show whether the content differs
            found |= {f"artifacts.{a['name']}": a.get("key", "").rpartition("-")[0] or a.get("key") for a in value}
        elif name in _BY_NAME:
            found |= {f"{name}.{key}": part for key, part in value.items()}
        else:
            found[name] = value
    return found


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    built = msgspec.to_builtins(value, enc_hook=encode_unit)
    assert isinstance(built, dict)
    return built


def _json(value: Any) -> str:
    return "" if value is None else msgspec.json.encode(value).decode()
