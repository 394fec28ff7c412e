"""What a job wants of each of its slots, by slot sharing group (R40)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from minflinkd.jobgraph.faults import Faults, at, meant, show
from minflinkd.jobgraph.model import JobGraph
from minflinkd.runtime.resource_profile import ResourceProfile, parse_amount, parse_profile


def profiles_of(graph: JobGraph, groups: Iterable[str]) -> Mapping[str, ResourceProfile]:
    """Return what these slot sharing groups want of each slot. What a group states replaces what the job states."""
    found = {}
    for group in groups:
        own = graph.slot_sharing_groups.get(group)
        found[group] = parse_profile(graph.resources if own is None else own.resources)
    return found


def check_resources(graph: JobGraph, faults: Faults) -> None:
    """Check that every amount can be read, and that vertices are in the groups for which something is stated."""
    _check(graph.resources, "resources", faults)
    used = {vertex.slot_sharing_group for vertex in graph.vertices}
    for name, group in graph.slot_sharing_groups.items():
        path = at("slot-sharing-groups", name)
        _check(group.resources, at(path, "resources"), faults)
        if used and name not in used:
            faults.add(path, f"no vertex is in slot sharing group {show(name)}", partial(meant, name, used))


def _check(amounts: Mapping[str, str], path: str, faults: Faults) -> None:
    for name, value in amounts.items():
        try:
            parse_amount(name, value)
        except ValueError as error:
            faults.add(at(path, name), str(error), "cpu: 1, memory: 2 GB, off-heap: 1 GB, disk: 10 GB, gpu: 1")
