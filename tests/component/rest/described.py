"""Compares what a server answers with what it says of itself in `/openapi.json` (E5)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import aiohttp
from jsonschema import Draft202012Validator

from minflinkd.rest.openapi.document import document
from minflinkd.rest.route import Route

_made: dict[frozenset[str], Described] = {}


def described(routes: Sequence[Route]) -> aiohttp.TraceConfig:
    """Return what makes a session check all of its answers. Servers with the same routes share the description."""
    key = frozenset(f"{route.method} {route.path}" for route in routes)
    if key not in _made:
        _made[key] = Described(routes)
    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(_made[key].compare)
    return trace


class Described:
    def __init__(self, routes: Sequence[Route]) -> None:
        self._document = json.loads(json.dumps(document(routes, "0")))
        self._validator = cache(self._new_validator)
        # A path without a parameter is meant before one with a parameter at the same place.
        self._paths = sorted(self._document["paths"], key=lambda path: (path.count("{"), path))

    async def compare(self, _: aiohttp.ClientSession, __: SimpleNamespace, end: aiohttp.TraceRequestEndParams) -> None:
        """Fail if the answer is not described: its status, its type, or what is in it."""
        response = end.response
        found = self._operation(end.method.lower(), end.url.raw_path)
        if found is None:  # there is no such path, or not this method
            assert response.status in (401, 403, 404, 405, 408, 413, 415, 417), (end.method, end.url, response.status)
            return
        path, operation = found
        assert str(response.status) in operation["responses"], f"{end.method} {path}: {response.status}"
        content = self._response(operation, response.status).get("content", {})
        if not content:
            return
        assert response.content_type in content, f"{end.method} {path}: {response.status}, {response.content_type}"
        if response.content_type.endswith("json"):
            answer = json.loads(await response.read())
            self._validator(path, end.method.lower(), response.status, response.content_type).validate(answer)

    def _operation(self, method: str, target: str) -> tuple[str, Any] | None:
        target = target.removeprefix("/v1") or "/"
        for path in self._paths:
            if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), target) and method in self._document["paths"][path]:
                return path, self._document["paths"][path][method]
        return None

    def _response(self, operation: Any, status: int) -> Any:
        response = operation["responses"][str(status)]
        name = response.get("$ref", "").rpartition("/")[2]
        return self._document["components"]["responses"][name] if name else response

    def _new_validator(self, path: str, method: str, status: int, media: str) -> Draft202012Validator:
        response = self._response(self._document["paths"][path][method], status)
        schema = response["content"][media]["schema"]
        return Draft202012Validator({**schema, "components": self._document["components"]})
