"""Replaces `${name}` in a job's SQL, paths and options with the job's param of that name.

The value is inserted as text, unquoted: `'${carrier}'` is an SQL text, `${minutes}` a number. `$${` is a literal `${`.

`${secret:name}` stands for a secret, in options and for a Schema Registry only. It is replaced where the task runs, and
stays as it is everywhere else: in records, in checkpoints, and in what is shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from minflinkd.jobgraph.faults import meant, show
from minflinkd.jobgraph.model import SchemaRegistry, Sink, Source, Vertex
from minflinkd.jobgraph.reading import option_text
from minflinkd.runtime.errors import Consequence, MinflinkError

_PLACE = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_SECRET = "secret:"  # noqa: S105 - how a placeholder of a secret begins
_OF_REGISTRY = ("url", "user", "password", "token", "ca")  # texts of a Schema Registry


class InvalidParam(MinflinkError):
    """A `${name}` without a value, or with a value that is no text."""

    code = "invalid-param"
    consequence = Consequence.REFUSED


def placeholder(secret: str) -> str:
    """Return what stands for a secret where nobody may know it."""
    return f"${{{_SECRET}{secret}}}"


def is_param_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def substitute(text: str, params: Mapping[str, Any], secret: Callable[[str], str] | None = None) -> str:
    """Return `text` with every `${name}` replaced. Raises InvalidParam for the first that has no value.

    `secret`: returns a secret, and may raise errors of its own. Without it, a text with a secret is refused.
    """
    for error in problems(text, params, secrets=secret is not None):
        raise error

    def replaced(place: re.Match[str]) -> str:
        if place[1]:
            return place[1]
        if secret is not None and place[2].startswith(_SECRET):
            return secret(place[2].removeprefix(_SECRET))
        return str(option_text(params[place[2]]))

    return _PLACE.sub(replaced, text)


def problems(text: str, params: Mapping[str, Any], *, secrets: bool = False) -> Iterator[InvalidParam]:
    """Yield an error for every placeholder of `text` that cannot be replaced, one per name.

    `secrets`: the text may have secrets.
    """
    for name in dict.fromkeys(m[2] for m in _PLACE.finditer(text) if not m[1]):
        if name.startswith(_SECRET):
            if not secrets:
                hint = "only an option of a source or a sink, or what opens a registry, may have a secret"
                yield InvalidParam(f"{show(name)[1:-1]} may not stand here", hint=hint)
            elif not is_param_name(name.removeprefix(_SECRET)):
                hint = "letters, digits, _, - and ., after a letter: ${secret:db-password}"
                yield InvalidParam(f"{show(name)} is no name of a secret", hint=hint)
        elif name not in params:
            hint = meant(name, params, "the params are") or "the job has no params"
            yield InvalidParam(f"${{{show(name)[1:-1]}}} has no value in params", hint=hint)
        elif option_text(params[name]) is None:
            problem = f"${{{name}}} is {show(params[name])}, which cannot stand in a text"
            yield InvalidParam(problem, hint="give it a text, a number, true or false")


def resolve(vertex: Vertex, params: Mapping[str, Any], secret: Callable[[str], str] = placeholder) -> Vertex:
    """Return the vertex as it runs, with the params filled in. Raises InvalidParam, and what `secret` raises.

    They are filled into SQL, schema, watermark delay, paths, options and the texts of a Schema Registry. `secret`:
    returns what stands for a secret; by default that is its name.
    """

    def filled(part: Source | Sink) -> dict[str, Any]:
        registry = part.schema_registry
        if registry is not None:
            texts = {name: substitute(text, params, secret) for name, text in _texts(registry)}
            registry = msgspec.structs.replace(registry, **texts)
        return {
            "path": part.path and substitute(part.path, params),
            "options": {k: substitute(v, params, secret) for k, v in part.options.items()},
            "schema_registry": registry,
        }

    changes: dict[str, Any] = {}
    if vertex.sql is not None:
        changes["sql"] = substitute(vertex.sql, params)
    if vertex.source is not None:
        schema = vertex.source.schema and substitute(vertex.source.schema, params)
        changes["source"] = msgspec.structs.replace(vertex.source, schema=schema, **filled(vertex.source))
    if vertex.sink is not None:
        changes["sink"] = msgspec.structs.replace(vertex.sink, **filled(vertex.sink))
    if vertex.watermark is not None:
        delay = substitute(vertex.watermark.delay, params)
        changes["watermark"] = msgspec.structs.replace(vertex.watermark, delay=delay)
    return msgspec.structs.replace(vertex, **changes)


def _texts(registry: SchemaRegistry) -> Iterator[tuple[str, str]]:
    for name in _OF_REGISTRY:
        if (text := getattr(registry, name)) is not None:
            yield name, text


def may_name_secrets(keys: tuple[str, ...]) -> bool:
    """Whether the text with these keys below its vertex may name secrets."""
    return "options" in keys or keys[-1] in ("password", "token")


def names_secrets(vertex: Vertex) -> bool:
    return any(f"${{{_SECRET}" in text for _, text in places(vertex))


def places(vertex: Vertex) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every text of a vertex that may contain params, with its keys below the vertex."""
    if vertex.sql is not None:
        yield ("sql",), vertex.sql
    if vertex.watermark is not None:
        yield ("watermark", "delay"), vertex.watermark.delay
    if vertex.source is not None and vertex.source.schema is not None:
        yield ("source", "schema"), vertex.source.schema
    for key, part in (("source", vertex.source), ("sink", vertex.sink)):
        if part is not None:
            if part.path is not None:
                yield (key, "path"), part.path
            for name, value in part.options.items():
                yield (key, "options", name), value
            for name, text in _texts(part.schema_registry) if part.schema_registry is not None else ():
                yield (key, "schema-registry", name), text
