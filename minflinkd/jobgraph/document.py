"""Job files: reads YAML or JSON text to plain values, and notes where in the text each of them is.

Covers syntax only. `validation` decides whether the values describe a job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from minflinkd.jobgraph.faults import DOCUMENT, MOST, GraphFault, InvalidJobGraph, at, located, show
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobgraph.places import Url, place_of
from minflinkd.jobgraph.validation import MOST_VALUES, parse_job
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import is_vertex_id
from minflinkd.runtime.secrets import without_credentials

_TAG = "tag:yaml.org,2002:"
LARGEST = 4 * 1024 * 1024  # bytes of a document


@dataclass(frozen=True)
class JobDocument:
    """The contents of a job file. `positions` has the line of every path, and is empty for JSON."""

    value: Any
    positions: Mapping[str, int] = field(default_factory=dict)
    duplicates: tuple[GraphFault, ...] = ()  # keys that occur twice, which JSON values cannot show
    base: Path | Url | None = None  # the directory that artifact paths are relative to, or the job file's URL
    fetched: Mapping[str, Path | MinflinkError] = field(
        default_factory=dict
    )  # by an artifact's path; else as `base` says
    made: Mapping[str, str] = field(default_factory=dict)  # the texts of artifacts that are no files, by their paths

    def with_params(self, params: Mapping[str, Any]) -> JobDocument:
        """Return the document with some params set or replaced, as `minflinkd run -p minutes=5` does."""
        if not params or not isinstance(self.value, Mapping):
            return self
        own = self.value.get("params") or {}
        merged = {**own, **params} if isinstance(own, Mapping) else own
        return replace(self, value={**self.value, "params": merged})

    def with_restore(self, restore: Mapping[str, Any] | None) -> JobDocument:
        """Return the document with another `restore`, as `minflinkd run --from-savepoint` does; None keeps it."""
        if restore is None or not isinstance(self.value, Mapping):
            return self
        return replace(self, value={**self.value, "restore": restore})

    def job(self) -> JobGraph:
        """Return the job that the file describes. Raises InvalidJobGraph with every fault."""
        faults, sound = list(self.duplicates), None
        try:
            graph = parse_job(self.value, self.positions, base=self.base, fetched=self.fetched)
        except InvalidJobGraph as error:
            faults, sound = [*faults, *error.faults], error.sound
        if faults:
            raise InvalidJobGraph(faults, sound)
        return graph

    def artifact_file(self, path: str) -> Path:
        """Return the file of an artifact of `job()`."""
        found = self.fetched.get(path) or place_of(path, self.base or Path()).file
        assert isinstance(found, Path)
        return found

    def shown(self) -> Any:
        """Return the value without the credentials of artifacts' URLs, for somebody who does not fetch them."""
        artifacts = self.value.get("artifacts") if isinstance(self.value, Mapping) else None
        return self.value if artifacts is None else {**self.value, "artifacts": _without_credentials(artifacts)}

    def locate(self, faults: Iterable[GraphFault]) -> tuple[GraphFault, ...]:
        """Return faults that were found elsewhere, such as by Spark, with their lines in this file."""
        return located(faults, self.positions)


def read_job_file(path: Path) -> JobDocument:
    """Read a file: JSON if its name ends in `.json`, otherwise YAML. Raises InvalidJobGraph and OSError."""
    text = path.read_bytes()
    document = parse_json(text) if path.suffix == ".json" else parse_yaml(text)
    return replace(document, base=path.parent)


def parse_json(text: bytes) -> JobDocument:
    """Parse JSON. Raises InvalidJobGraph if the text is not JSON, or too large."""
    _check_size(text)
    duplicates: list[GraphFault] = []

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        unique: dict[str, Any] = {}
        for key, value in pairs:
            if key in unique and len(duplicates) < MOST:
                problem = f"the key {show(key)} is twice in one mapping"
                duplicates.append(GraphFault(path=DOCUMENT, problem=problem, hint="keys and ids are unique"))
            unique.setdefault(key, value)
        return unique

    try:
        value = json.loads(text, object_pairs_hook=mapping, parse_constant=_not_a_number)
    except json.JSONDecodeError as error:
        _refuse(f"this is not JSON: {error.msg}", error.lineno)
    except (ValueError, RecursionError) as error:
        _refuse(f"this is not JSON: {error}", None)
    return JobDocument(value, duplicates=tuple(duplicates))


def parse_yaml(text: bytes) -> JobDocument:
    """Parse YAML. Raises InvalidJobGraph if the text is not YAML, or too large."""
    _check_size(text)
    try:
        node = YAML(typ="safe", pure=True).compose(text.decode())
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        _refuse(f"this is not YAML: {error.problem or error.context}", mark.line + 1 if mark else None)
    except (YAMLError, ValueError, RecursionError) as error:
        _refuse(f"this is not YAML: {str(error).splitlines()[0]}", None)
    if node is None:
        _refuse("the file is empty", None)
    plain = _Plain()
    try:
        value = plain.read(node, DOCUMENT)
    except RecursionError:
        _refuse("the file is nested too deep", None)
    return JobDocument(value, plain.positions, tuple(plain.faults))


def _check_size(text: bytes) -> None:
    if len(text) > LARGEST:
        _refuse(f"the file has {len(text):,} bytes, and {LARGEST:,} are the most", None)


class _Plain:
    """Converts YAML nodes to plain values. Dates stay text, because JSON has none."""

    def __init__(self) -> None:
        self.positions: dict[str, int] = {}
        self.faults: list[GraphFault] = []
        self._left = MOST_VALUES  # aliases count as often as they are used
        self._scalars = YAML(typ="safe", pure=True).constructor

    def read(self, node: Node, path: str) -> Any:
        self._left -= 1
        if self._left < 0:
            _refuse(f"the file has more than {MOST_VALUES:,} values", None)
        self.positions.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self._entry(entry, path, i) for i, entry in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                _refuse("a key is a mapping or a list", key_node.start_mark.line + 1)
            key, line = key_node.value, key_node.start_mark.line + 1
            here = at(path, key)
            if key in values:
                self._fault(here, line, f"the key {show(key)} is twice in one mapping", "keys and ids are unique")
                continue
            self.positions[here] = line
            values[key] = self.read(value_node, here)
        return values

    def _entry(self, node: Node, path: str, index: int) -> Any:
        """Read an entry of a list. Faults name a vertex by its id, so a list of vertices is noted under both paths."""
        old, before, self.positions = at(path, index), self.positions, {}
        value = self.read(node, old)
        own, self.positions = self.positions, before
        self.positions.update(own)
        name = value.get("id") if path == "vertices" and isinstance(value, dict) else None
        if isinstance(name, str) and is_vertex_id(name):
            new = at(path, name)
            for known, line in own.items():
                self.positions.setdefault(new + known[len(old) :], line)
        return value

    def _scalar(self, node: Node, path: str) -> Any:
        kind = str(node.tag).removeprefix(_TAG)
        if kind in ("null", "bool", "int", "float"):
            try:
                return self._scalars.construct_object(node)
            except (YAMLError, ValueError):
                kind = f"!!{kind}"
        if kind not in ("str", "timestamp", "value", "merge"):
            self._fault(path, node.start_mark.line + 1, f"the tag {show(kind)} is not known here", "leave it out")
        return node.value

    def _fault(self, path: str, line: int, problem: str, hint: str) -> None:
        self.faults.append(GraphFault(path=path, problem=problem, hint=hint, line=line))


def _without_credentials(value: Any) -> Any:
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        return {key: _without_credentials(entry) for key, entry in value.items()}
    return [_without_credentials(entry) for entry in value] if isinstance(value, list | tuple) else value


def _not_a_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


def _refuse(problem: str, line: int | None) -> NoReturn:
    raise InvalidJobGraph([GraphFault(path=DOCUMENT, problem=problem, line=line)])
