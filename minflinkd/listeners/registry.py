"""Finds listeners by their entry points, and makes those that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points

from minflinkd.listeners.interface import GROUP, InvalidListenerOption, Listener


def new_listeners(options: Mapping[str, str]) -> dict[str, Listener]:
    """Return the listeners of these options, which are named `<listener>.<option>`. Raises InvalidListenerOption."""
    by_name: dict[str, dict[str, str]] = {}
    for key, value in options.items():
        name, dot, option = key.partition(".")
        if not dot or not option:
            raise InvalidListenerOption(
                f"listeners.{key} names no option of a listener", hint="such as listeners.openlineage.url"
            )
        by_name.setdefault(name, {})[option] = value
    return {name: _class(name)(found) for name, found in by_name.items()}


def _class(name: str) -> type[Listener]:
    try:
        for point in entry_points(group=GROUP, name=name):
            loaded = point.load()
            assert isinstance(loaded, type)
            assert issubclass(loaded, Listener)
            return loaded
    except (ImportError, AssertionError) as error:
        raise InvalidListenerOption(
            f"the listener {name} cannot be loaded: {error}", hint="install what its package needs"
        ) from error
    known = ", ".join(sorted(point.name for point in entry_points(group=GROUP))) or "none"
    raise InvalidListenerOption(f"there is no listener {name[:64]!r}", hint=f"installed are: {known}")
