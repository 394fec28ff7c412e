"""The document of `/openapi.json`: OpenAPI 3.1, from the routes and what they declare (E5). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from minflinkd.rest.declared import JSON, InPath, Parameter
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.openapi.components import Components, for_readers
from minflinkd.rest.openapi.errors import ERRORS, error_content, error_responses, errors_of
from minflinkd.rest.route import Route, Text
from minflinkd.rest.schemas import ErrorAnswer, FlinkError

ROLE: Final = "x-minflinkd-role"
_SCHEME: Final = "token"
_ABOUT: Final = (
    "The endpoint of a minflinkd daemon: Flink's REST API, and what Flink does not have. "
    "What Flink has no field for is in a field `minflinkd`. Each path is also there with the prefix /v1. "
    f"`{ROLE}` is the role that a token must have at least: view, operate, submit or admin; anybody: none is needed."
)
_BEARER: Final = (
    "A token of the daemon, of `minflinkd token create`, or of an issuer that the daemon trusts. The Unix socket, a "
    "client's certificate and a browser's cookie do instead of it. "
    "With security.allow-unauthenticated nothing is asked for."
)


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """Return the document of these routes. `version`: minflinkd's."""
    sent = [kind for route in routes for kind in route.answers.values() if not isinstance(kind, Text)]
    components = Components(
        [FlinkError, ErrorAnswer, *sent], [route.body.kind for route in routes if route.body is not None]
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "minflinkd", "version": version, "description": _ABOUT},
        "servers": [{"url": "/"}, {"url": "/v1", "description": "The same, as Flink's clients ask"}],
        "security": [{_SCHEME: []}],
        "paths": paths,
        "components": {
            "schemas": components.schemas,
            "responses": error_responses(components.of(FlinkError), components.of(ErrorAnswer)),
            "securitySchemes": {_SCHEME: {"type": "http", "scheme": "bearer", "description": _BEARER}},
        },
    }


def _operation(route: Route, components: Components) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _id(route),
        "tags": [route.path.split("/")[1] or "home"],
        "summary": route.means,
        ROLE: str(route.role),
    }
    if route.more:
        operation["description"] = _without_links(route.more)
    if route.role is Role.ANYBODY:
        operation["security"] = []
    if route.parameters:
        operation["parameters"] = [_parameter(each) for each in route.parameters]
    if route.body is not None:
        schema = {"schema": components.of(route.body.kind)}
        operation["requestBody"] = {
            "description": route.body.means,
            "required": not route.body.optional,
            "content": dict.fromkeys(route.body.media, schema),
        }
    operation["responses"] = {str(status): made for status, made in sorted(_responses(route, components))}
    return operation


def _without_links(text: str) -> str:
    """Pages of docs/ cannot be reached from where the document is read."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)


def _id(route: Route) -> str:
    """Return a name for generated clients, such as `get_jobs_jobid_plan`."""
    return "_".join([route.method.lower(), *re.findall(r"\w+", route.path.replace("-", "_").replace(".", "_"))])


def _parameter(one: Parameter) -> dict[str, Any]:
    schema = for_readers(msgspec.json.schema(one.kind))
    shown = {"name": one.name, "description": one.means, "schema": schema}
    if isinstance(one, InPath):
        return shown | {"in": "path", "required": True}
    if one.default is not None:
        schema["default"] = one.default
    if one.kind is bool:  # a flag may be given by its name alone
        shown["allowEmptyValue"] = True
    return shown | {"in": "query"}


def _responses(route: Route, components: Components) -> Iterable[tuple[int, dict[str, Any]]]:
    errors = errors_of(route)
    for status, kind in route.answers.items():
        response = _answer(status, kind, components)
        if status in errors:  # either, such as 503 with the reasons why the daemon is not ready
            both = [response["content"][JSON]["schema"], components.of(FlinkError)]
            response["content"] = error_content({"anyOf": both}, components.of(ErrorAnswer))
        yield status, response
    for status in errors:
        if status not in route.answers:
            yield status, {"$ref": f"#/components/responses/{ERRORS[status].name}"}


def _answer(status: int, kind: Any, components: Components) -> dict[str, Any]:
    response: dict[str, Any] = {"description": _MEANS.get(status, "Not ready; or an error")}
    if not isinstance(kind, Text):
        response["content"] = {JSON: {"schema": components.of(kind)}}
        return response
    if kind.headers:
        text = {"type": "string"}
        response["headers"] = {name: {"description": means, "schema": text} for name, means in kind.headers.items()}
    if kind.media:
        response["content"] = {kind.media: {"schema": {"type": "string"}}}
    return response


_MEANS: Final = {
    200: "The answer",
    201: "Made",
    202: "It has begun",
    204: "Done",
    206: "The part that was asked for",
    303: "Logged in from the form: the page to go on with",
}
