"""All paths of Flink's REST API, and what this endpoint makes of each.

`paths.tsv` is made from Flink's jar. `standing.tsv` has a line for each path, to be changed with the routes:

- `implemented`: answered with what there is here,
- `empty`: answered as Flink does where there is nothing, because it has no meaning here,
- `refused`: answered with an error that says why,
- `absent`: there is no such route.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minflinkd.rest.route import Route

HERE = Path(__file__).parent
ANSWERED = frozenset({"implemented", "empty", "refused"})
STANDINGS = ANSWERED | {"absent"}
RAW = frozenset({"(raw)", ""})  # answers that are no JSON


@dataclass(frozen=True)
class FlinkPath:
    """`response`: the class of the answer."""

    method: str
    path: str
    status: int | None
    response: str

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def is_json(self) -> bool:
        return self.response not in RAW


def flink_paths() -> tuple[FlinkPath, ...]:
    with (HERE / "paths.tsv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return tuple(
        FlinkPath(row["method"], row["path"], int(row["status"]) if row["status"] else None, row["response"])
        for row in rows
    )


def standings() -> dict[str, str]:
    """Return the standing of each path, by method and path."""
    lines = (HERE / "standing.tsv").read_text(encoding="utf-8").splitlines()
    found = [line.split("\t") for line in lines]
    return {f"{method} {path}": standing for method, path, standing in found}


def routed(routes: Iterable[Route]) -> dict[str, Route]:
    """Return routes by method and path, the parameters of which have no name: Flink calls some of them otherwise."""
    return {f"{route.method} {unnamed(route.path)}": route for route in routes}


def unnamed(path: str) -> str:
    return re.sub(r":\w+|\{\w+\}", "*", path)


def filled(path: str, values: dict[str, str]) -> str:
    """Return a path with these values for its parameters."""
    return re.sub(r":(\w+)", lambda found: values[found[1]], path)


def asked_for(paths: Sequence[FlinkPath], standing: dict[str, str]) -> list[FlinkPath]:
    """Return the paths that a client can ask for without changing anything, and that are answered as JSON."""
    return [
        path
        for path in paths
        if path.method == "GET" and path.is_json and standing[path.name] in ("implemented", "empty")
    ]
