"""The manifests of deploy/kubernetes, as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

DIRECTORY = Path(__file__).parents[2] / "deploy" / "kubernetes"


def documents(file: Path) -> list[dict[str, Any]]:
    return [found for found in YAML(typ="safe", pure=True).load_all(file.read_text("utf-8")) if found is not None]


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of the file and the object, for every object."""
    for file in sorted(DIRECTORY.glob("*.yaml")):
        for found in documents(file):
            yield file.name, found


def manifest(kind: str, name: str) -> dict[str, Any]:
    return next(each for _, each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name))
