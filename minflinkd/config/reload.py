"""What a reload (SIGHUP) can apply, and what needs a restart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from minflinkd.config.declaration import Option, Reload
from minflinkd.config.options import Config, options


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference between two configurations."""

    config: Config  # the old configuration with the new values of options that can change at run time
    live: tuple[str, ...]  # keys with new values in `config`
    restart: tuple[str, ...]  # keys that keep their old values until the daemon is restarted


def changes(old: Config, new: Config) -> Changes:
    """Return what changes in `old` when a running daemon loads `new`."""
    changed = [option for option in options() if option.value_in(old) != option.value_in(new)]
    live = [option for option in changed if option.reload is Reload.LIVE]
    kept = _keys(option for option in changed if option.reload is Reload.RESTART)
    origins = {key: found for key, found in new.origins.items() if key not in kept}
    origins |= {key: old.origins[key] for key in kept if key in old.origins}  # they are what was set there before
    return Changes(
        config=replace(old.with_values({option: option.value_in(new) for option in live}), origins=origins),
        live=_keys(live),
        restart=kept,
    )


def _keys(found: Iterable[Option]) -> tuple[str, ...]:
    return tuple(option.key for option in found)
