"""The schemas of Kubernetes' objects, as kubernetes-validate ships them: those of real API servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

VERSION = "1.33.0"
SCHEMAS = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"


@cache
def _validator(kind: str, api_version: str, strict: bool) -> Draft202012Validator:
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    directory = SCHEMAS / f"v{VERSION}-local{'-strict' if strict else ''}"
    schema = json.loads((directory / f"{kind.lower()}-{group}.json").read_text("utf-8"))
    definitions = Resource.from_contents(json.loads((directory / "_definitions.json").read_text("utf-8")))
    registry: Registry[Any] = definitions @ Registry()
    return Draft202012Validator(schema, registry=registry)


def faults(found: dict[str, Any], *, strict: bool = True) -> Iterator[tuple[str, str]]:
    """Yield the path of each field that is wrong, and what is wrong. `strict`: unknown fields are wrong, too."""
    for error in _validator(found["kind"], found["apiVersion"], strict).iter_errors(found):
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
        yield path.removeprefix("."), error.message
