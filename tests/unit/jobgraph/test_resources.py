"""What a job file says of the slots that the job needs (R40)."""

from __future__ import annotations

import pytest

from minflinkd.jobgraph.api import Job
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.document import parse_yaml
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.model import JobGraph, decode, encode, version_of
from minflinkd.jobgraph.resources import profiles_of
from minflinkd.runtime.resource_profile import NO_PROFILE, parse_profile

JOB = b"""
name: sized
resources: {cpu: 1, memory: 2 GB, gpu: 1}
slot-sharing-groups: {light: {resources: {memory: 512 MiB}}, any: {}}
vertices:
  rate: {source: {format: rate}}
  all: {sql: SELECT * FROM rate, inputs: [rate], slot-sharing-group: light}
  rest: {sql: SELECT * FROM all, inputs: [all], slot-sharing-group: any}
  out: {inputs: [rest], sink: {format: console}, slot-sharing-group: any}
"""


def job(text: bytes = JOB) -> JobGraph:
    return parse_yaml(text).job()


def test_a_job_says_what_its_slots_must_have_and_a_slot_sharing_group_says_it_for_itself() -> None:
    """What a group states replaces what the job states, even if it is nothing (R40)."""
    graph = job()
    groups = {task.slot_sharing_group for task in chain(graph)}
    assert profiles_of(graph, groups) == {
        "default": parse_profile({"cpu": 1, "memory": "2 GB", "gpu": 1}),
        "light": parse_profile({"memory": "512 MiB"}),
        "any": NO_PROFILE,
    }
    assert decode(encode(graph)) == graph


def test_other_resources_make_another_version() -> None:
    """Its tasks may have to run elsewhere, so none is adopted as it is (R40, A14a)."""
    assert version_of(job()) != version_of(job(JOB.replace(b"2 GB", b"3 GB")))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"2 GB", b"much", "resources.memory: 'much' is not a size"),
        (b"cpu: 1", b"cpu: many", "resources.cpu: 'many' is not a number"),
        (b"cpu: 1", b"Cores: 1", "'Cores' is neither cpu, memory, off-heap, disk nor a name"),
        (b"512 MiB", b"half", "slot-sharing-groups.light.resources.memory: 'half' is not a size"),
        (b"light: {resources: {memory: 512 MiB}}", b"ligth: {}", "slot-sharing-groups.ligth: no vertex is in"),
        (b"any: {}", b"any: {memory: 1 GB}", "slot-sharing-groups.any.memory: unknown key"),
        (b"any: {}", b"any: 3", "slot-sharing-groups.any: 3 is not a mapping"),
    ],
)
def test_a_wrong_amount_is_a_fault_with_its_place(old: bytes, new: bytes, fault: str) -> None:
    """R40, J4."""
    assert old in JOB
    with pytest.raises(InvalidJobGraph) as raised:
        job(JOB.replace(old, new))
    assert fault in str(raised.value)
    assert all(found.line for found in raised.value.faults)


def test_the_python_api_takes_the_same() -> None:
    """R40."""
    made = Job("sized", resources={"memory": "2 GB"}, slot_sharing_groups={"heavy": {"resources": {"gpu": 1}}})
    made.source("rate", format="rate", slot_sharing_group="heavy").sink("out", format="console")
    assert profiles_of(made.graph(), ["heavy"]) == {"heavy": parse_profile({"gpu": 1})}
