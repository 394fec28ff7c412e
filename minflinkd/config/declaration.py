"""How an option is declared: as a field of a frozen dataclass, with its key, text, limits and reload class."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_DECLARATION: Final = "option"


class Reload(StrEnum):
    """What is needed for a changed value to take effect."""

    LIVE = "live"  # a reload applies it
    RESTART = "restart"  # the daemon must be restarted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Option:
    """One option, for all code that reads or shows a configuration. There is exactly one object for each."""

    key: str
    text: str
    default: object
    kind: type  # of the value: bool, int, float, str, Duration, MemorySize, PortRange, a StrEnum, or dict
    optional: bool  # may have no value (None)
    path: tuple[str, ...]  # attribute names, from Config down
    reload: Reload
    sensitive: bool
    at_least: float | None
    at_most: float | None
    aliases: tuple[str, ...]

    @property
    def variable(self) -> str:
        """The environment variable that overrides the option."""
        return "MINFLINKD_" + self.key.upper().replace(".", "_").replace("-", "_")

    def value_in(self, tree: object) -> object:
        for name in self.path:
            tree = getattr(tree, name)
        return tree


@dataclass(frozen=True, slots=True)
class _Declaration:
    key: str
    text: str
    reload: Reload
    sensitive: bool
    at_least: float | None
    at_most: float | None
    aliases: tuple[str, ...]


def option(
    key: str,
    default: T,
    text: str,
    *,
    reload: Reload = Reload.RESTART,
    sensitive: bool = False,
    at_least: float | None = None,
    at_most: float | None = None,
    aliases: tuple[str, ...] = (),
) -> T:
    """Declare a field of a section as the option `key`.

    `sensitive` values are masked wherever they are shown; in a map, the entries with names that look like secrets.
    `at_least` and `at_most` are in the option's base unit (seconds, bytes). `aliases` are other names that a file may
    use, for options that Flink and this project's documents name differently.
    """
    metadata = {_DECLARATION: _Declaration(key, text, reload, sensitive, at_least, at_most, aliases)}
    if isinstance(default, dict):
        return cast(T, dataclasses.field(default_factory=lambda: dict(default), metadata=metadata))
    return dataclasses.field(default=default, metadata=metadata)


def declared(tree: type, path: tuple[str, ...] = ()) -> Iterator[Option]:
    """Yield all options of a tree of sections, in the order of their declaration."""
    hints = get_type_hints(tree)
    for field in dataclasses.fields(tree):
        hint, here = hints[field.name], (*path, field.name)
        declaration: _Declaration | None = field.metadata.get(_DECLARATION)
        if declaration is None:
            if isinstance(hint, type) and dataclasses.is_dataclass(hint):  # a section
                yield from declared(hint, here)
            continue
        kind, optional = _kind(hint)
        yield Option(
            key=declaration.key,
            text=declaration.text,
            default=_default(field),
            kind=kind,
            optional=optional,
            path=here,
            reload=declaration.reload,
            sensitive=declaration.sensitive,
            at_least=declaration.at_least,
            at_most=declaration.at_most,
            aliases=declaration.aliases,
        )


def _kind(hint: Any) -> tuple[type, bool]:
    if get_origin(hint) in (Union, UnionType):
        (kind,) = (arg for arg in get_args(hint) if arg is not NoneType)
        return kind, True
    return get_origin(hint) or hint, False


def _default(field: dataclasses.Field[Any]) -> object:
    return field.default if field.default is not dataclasses.MISSING else cast(Any, field.default_factory)()
