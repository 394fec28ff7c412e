"""The tree of all options. An instance of `Config` is one complete, immutable configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from minflinkd.config.cluster_options import (
    Artifacts,
    Blob,
    Cluster,
    Heartbeat,
    JobManager,
    Listeners,
    Log,
    Rest,
    Security,
    StorageBackends,
)
from minflinkd.config.declaration import Option, declared
from minflinkd.config.ha_options import HighAvailability
from minflinkd.config.job_options import Checkpointing, HotRestart, RestartStrategy, Scheduler, Slot
from minflinkd.config.kubernetes_options import Kubernetes
from minflinkd.config.origin import Origin
from minflinkd.config.taskmanager_options import ResourceManager, TaskManager
from minflinkd.config.tls_options import InternalTls, RestTls
from minflinkd.config.values import format_value, masked


class Item(NamedTuple):
    """An option in the form shown to people."""

    key: str
    value: str  # masked if the option is sensitive
    is_default: bool
    sensitive: bool
    origins: tuple[Origin, ...] = ()  # where it was set, for a map each entry; empty: nowhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`Config()` has the defaults; `load_config` reads files and overrides.

    `origins`: where options were set, by their keys. Configurations with the same values are equal, wherever they are
    from.
    """

    cluster: Cluster = field(default_factory=Cluster)
    ha: HighAvailability = field(default_factory=HighAvailability)
    rest: Rest = field(default_factory=Rest)
    security: Security = field(default_factory=Security)
    internal_tls: InternalTls = field(default_factory=InternalTls)
    rest_tls: RestTls = field(default_factory=RestTls)
    jobmanager: JobManager = field(default_factory=JobManager)
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    resourcemanager: ResourceManager = field(default_factory=ResourceManager)
    kubernetes: Kubernetes = field(default_factory=Kubernetes)
    taskmanager: TaskManager = field(default_factory=TaskManager)
    slot: Slot = field(default_factory=Slot)
    scheduler: Scheduler = field(default_factory=Scheduler)
    hot_restart: HotRestart = field(default_factory=HotRestart)
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    restart_strategy: RestartStrategy = field(default_factory=RestartStrategy)
    blob: Blob = field(default_factory=Blob)
    artifacts: Artifacts = field(default_factory=Artifacts)
    storage: StorageBackends = field(default_factory=StorageBackends)
    listeners: Listeners = field(default_factory=Listeners)
    log: Log = field(default_factory=Log)
    origins: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict, compare=False, repr=False)

    def with_values(self, values: Mapping[Option, object]) -> Config:
        """Return this configuration with other values. Neither their types nor their combinations are checked."""
        config: Config = _replaced(self, {option.path: value for option, value in values.items()})
        return config

    def as_items(self) -> list[Item]:
        """Return every option with its value as text, in the order of declaration. Secrets are masked."""
        items = []
        for option in options():
            value = option.value_in(self)
            text = format_value(masked(option, value))
            origins = self.origins.get(option.key, ())
            items.append(Item(option.key, text, value == option.default, option.sensitive, origins))
        return items


@cache
def options() -> tuple[Option, ...]:
    """Return all options, in the order of their declaration."""
    return tuple(declared(Config))


@cache
def option_named(key: str) -> Option | None:
    """Return the option with this key or alias."""
    return next((option for option in options() if key == option.key or key in option.aliases), None)


def _replaced(tree: Any, values: Mapping[tuple[str, ...], object]) -> Any:
    changes = {path[0]: value for path, value in values.items() if len(path) == 1}
    for name in {path[0] for path in values if len(path) > 1}:
        below = {path[1:]: value for path, value in values.items() if path[0] == name}
        changes[name] = _replaced(getattr(tree, name), below)
    return dataclasses.replace(tree, **changes)
