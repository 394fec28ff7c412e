"""What TaskManagers have by default, and what they may have at the most, by the options and the host (R40). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from minflinkd.config.options import Config
from minflinkd.runtime.resource_profile import MOST, ResourceProfile, parse_amount, parse_profile
from minflinkd.runtime.spark_master import on_cluster

BESIDE_HEAP: Final = 2 * 1024**3  # bytes that a session that has not aged may use in addition to its heap
OWN: Final = "taskmanager.resources"
LARGEST: Final = "resourcemanager.largest-taskmanager"
_OPTIONS: Final = {"memory": "taskmanager.memory.heap.size", "off-heap": "taskmanager.session.max-memory"}


def resources_of(config: Config, host: ResourceProfile) -> ResourceProfile:
    """Return what a whole TaskManager of the default size has on this host."""
    options, session = config.taskmanager, config.taskmanager.session
    stated, heap = parse_profile(options.resources), int(session.memory_heap_size)
    cores = float(options.number_of_task_slots) if _elsewhere(config) else host.cpu
    return ResourceProfile(
        extras=stated.extras,
        memory=heap,
        off_heap=max(0, int(session.max_memory or heap + BESIDE_HEAP) - heap),
        cpu=stated.cpu or cores,
        disk=stated.disk or host.disk,
    )


def largest_of(config: Config, host: ResourceProfile) -> ResourceProfile:
    """Return what a TaskManager that is started on this host may have at the most."""
    stated, own = parse_profile(config.resourcemanager.largest_taskmanager), resources_of(config, host)
    most = ResourceProfile(
        extras=tuple(sorted({**dict(own.extras), **dict(stated.extras)}.items())),
        memory=stated.memory or host.memory,
        off_heap=stated.off_heap or host.memory,
        cpu=stated.cpu or (MOST if _elsewhere(config) else host.cpu),
        disk=stated.disk or host.disk,
    )
    return most | own


def _elsewhere(config: Config) -> bool:
    """Whether the executors compute on a Spark cluster, so that this host's cores say nothing."""
    session = config.taskmanager.session
    return on_cluster(session.spark_conf.get("spark.master", session.spark_master))


def impossible_resources(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what is wrong with the two options: the keys involved, and why."""
    own, largest = config.taskmanager.resources, config.resourcemanager.largest_taskmanager
    faults = [*_unreadable(OWN, own), *_unreadable(LARGEST, largest)]
    yield from faults
    for name, option in _OPTIONS.items():
        if name in own:
            yield (f"{OWN}.{name}", option), f"{OWN}.{name} has an option of its own: set {option}"
    if faults:
        return
    default = resources_of(config, ResourceProfile())
    stated = parse_profile(largest).amounts()
    for name, amount in default.amounts().items():
        if stated.get(name, amount) < amount and (name != "cpu" or "cpu" in own):
            asked = OWN if name in own else _OPTIONS.get(name, OWN)
            yield (
                (f"{LARGEST}.{name}", asked),
                f"a TaskManager has more {name} by default than {LARGEST} allows: raise it, or lower {asked}",
            )


def _unreadable(option: str, amounts: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, value in amounts.items():
        try:
            parse_amount(name, value)
        except ValueError as error:
            yield (f"{option}.{name}",), str(error)
