"""The list of paths in docs/http.md, from the routes and what they declare (E5). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from minflinkd.jobgraph.model import JobGraph
from minflinkd.rest.declared import Body, InQuery
from minflinkd.rest.openapi.components import for_readers
from minflinkd.rest.route import Route

BEGIN: Final = "<!-- paths: `python -m minflinkd.rest.openapi` writes what follows -->"
END: Final = "<!-- end of paths -->"
_SECTIONS: Final = {  # by first part of the path, in the order of the page
    "jobs": "Jobs",
    "taskmanagers": "TaskManagers",
    "cluster": "Daemon and cluster",
    "savepoint-disposal": "Storage",
    "blobs": "Blobs",
    "login": "Page and log-in",
    "health": "Health, metrics, events, diagnosis",
}
_SAME: Final = {  # these parts are in the section of another one
    "": "cluster",
    "applications": "jobs",
    "config": "cluster",
    "diagnosis": "health",
    "events": "health",
    "history": "health",
    "jars": "jobs",
    "jobmanager": "cluster",
    "logout": "login",
    "metrics": "health",
    "openapi.json": "cluster",
    "overview": "cluster",
    "page": "login",
    "quotas": "cluster",
    "storage": "savepoint-disposal",
    "whoami": "login",
}


def with_paths(page: str, routes: Sequence[Route]) -> str:
    """Return the page with the list of these routes between its two marks. Raises ValueError if it has no marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page must contain {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{_listed(routes)}\n{END}{after}"


def _listed(routes: Sequence[Route]) -> str:
    order = [*_SECTIONS]
    by_section = sorted(routes, key=lambda one: order.index(_section(one)))
    parts = []
    for section, members in groupby(by_section, _section):
        rows = "\n".join(_row(each) for each in sorted(members, key=lambda one: one.path))
        parts.append(f"### {_SECTIONS[section]}\n| path | role | |\n|---|---|---|\n{rows}")
    return "\n\n".join(parts)


def _section(route: Route) -> str:
    first = route.path.split("/")[1]
    section = _SAME.get(first, first)
    return section if section in _SECTIONS else "cluster"


def _row(route: Route) -> str:
    path = route.path.replace("{", ":").replace("}", "")
    return f"| `{route.method} {path}` | {route.role} | {' '.join(_sentences(route))} |"


def _sentences(route: Route) -> Iterable[str]:
    yield _ended(route.means)
    if route.more:
        yield _ended(route.more)
    if route.query:
        yield _ended("Query: " + "; ".join(map(_parameter, route.query)))
    if route.body is not None:
        yield _ended(f"Body: {_body(route.body)}")
    begun = sorted(status for status in route.answers if status != 200)
    if begun and not route.means.startswith(("Refused", "Not found")):
        yield _ended("Answers " + ", ".join(map(str, begun)))


def _parameter(one: InQuery[Any]) -> str:
    means = one.means[:1].lower() + one.means[1:]
    default = "" if one.kind is bool or one.default in (None, "") else f" (by default {one.default})"
    return f"`{one.name}`: {means.rstrip('.')}{default}"


def _body(body: Body[Any]) -> str:
    means = body.means[:1].lower() + body.means[1:]
    if body.kind is JobGraph or not (isinstance(body.kind, type) and issubclass(body.kind, msgspec.Struct)):
        return means
    _, schemas = msgspec.json.schema_components([body.kind])
    fields = for_readers(schemas[body.kind.__name__])["properties"]
    return f"{means.rstrip('.')}; " + ", ".join(f"`{name}`" for name in fields) if fields else means


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", ":", "?")) else f"{sentence}."
