"""What TaskManagers have by the options and the host, and what they may have (R40)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.config.load import ConfigError, parse_config
from minflinkd.config.resources import largest_of, resources_of
from minflinkd.daemon_options import resource_manager_options
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile, parse_profile
from minflinkd.taskmanager.settings import DaemonAddress, settings_of

HOST = parse_profile({"cpu": 8, "memory": "32 GiB", "disk": "100 GiB"})


def test_a_taskmanager_has_its_heap_what_its_session_may_take_beside_it_and_what_its_host_has() -> None:
    """R40."""
    config = parse_config("taskmanager.memory.heap.size: 2 GiB", {}, {})
    assert str(resources_of(config, HOST)) == "8 cpu, 2 GiB memory, 2 GiB off-heap, 100 GiB disk"
    stated = "taskmanager.resources: {cpu: 2, disk: 10 GiB, gpu: 1}\ntaskmanager.session.max-memory: 5 GiB"
    config = parse_config(f"taskmanager.memory.heap.size: 2 GiB\n{stated}", {}, {})
    assert str(resources_of(config, HOST)) == "2 cpu, 2 GiB memory, 3 GiB off-heap, 10 GiB disk, 1 gpu"


def test_executors_on_a_cluster_take_as_many_cores_as_the_taskmanager_has_slots() -> None:
    """R40."""
    text = "taskmanager.spark.master: spark://m:7077\ntaskmanager.state.local.root-dir: /shared"
    config = parse_config(f"{text}\ntaskmanager.numberOfTaskSlots: 16", {}, {})
    assert resources_of(config, HOST).cpu == 16


def test_the_largest_taskmanager_has_what_the_host_has_unless_the_option_says_otherwise() -> None:
    """And never less than the default one (R40)."""
    config = parse_config("taskmanager.resources.gpu: 1", {}, {})
    assert str(largest_of(config, HOST)) == "8 cpu, 32 GiB memory, 32 GiB off-heap, 100 GiB disk, 1 gpu"
    text = "resourcemanager.largest-taskmanager: {cpu: 4, memory: 8 GiB, off-heap: 4 GiB, disk: 1 TB, gpu: 2}"
    config = parse_config(f"taskmanager.resources.gpu: 1\n{text}", {}, {})
    assert str(largest_of(config, HOST)) == "8 cpu, 8 GiB memory, 4 GiB off-heap, 1 TB disk, 2 gpu"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("taskmanager.resources.gpu: many", "'many' is not a number"),
        ("taskmanager.resources.disk: wide", "'wide' is not a size"),
        ("taskmanager.resources.memory: 4 GB", "set taskmanager.memory.heap.size"),
        ("taskmanager.resources.off-heap: 4 GB", "set taskmanager.session.max-memory"),
        ("resourcemanager.largest-taskmanager.Cores: 4", "'Cores' is neither cpu"),
        ("resourcemanager.largest-taskmanager.memory: 512 MiB", "more memory by default than"),
        (
            "taskmanager.resources.gpu: 2\nresourcemanager.largest-taskmanager.gpu: 1",
            "raise it, or lower taskmanager.resources",
        ),
    ],
)
def test_what_cannot_be_is_a_fault_of_the_configuration(text: str, why: str) -> None:
    """R40, E20."""
    with pytest.raises(ConfigError, match=why):
        parse_config(text, {}, {})


def test_the_resourcemanager_counts_with_what_the_taskmanagers_of_the_daemon_will_tell() -> None:
    """If it counted with more, it would start one after the other in vain (R40)."""
    config = parse_config("taskmanager.numberOfTaskSlots: 3\ntaskmanager.resources.gpu: 1", {}, {})
    options = resource_manager_options(config, HOST)
    assert options.profile == resources_of(config, HOST).share(3)
    assert options.largest == largest_of(config, HOST)
    config = parse_config("resourcemanager.driver: standalone\njobmanager.rpc.port: 1", {}, {})
    alone = resource_manager_options(config, HOST)
    assert (alone.profile, alone.largest) == (NO_PROFILE, None)


def test_a_taskmanager_of_another_size_is_told_its_slots_and_memory(tmp_path: Path) -> None:
    """A session that takes more than that has aged (R40)."""
    profile = ResourceProfile(memory=3 * 2**30, off_heap=2**30, extras=(("gpu", 1.0),))
    settings = settings_of(
        parse_config("", {}, {}),
        resource_id=ResourceId("tm-1"),
        daemon=DaemonAddress(host="127.0.0.1", port=1, secret_file=tmp_path / "secret"),
        directory=tmp_path,
        registration_timeout=1.0,
        slots=2,
        profile=profile,
    )
    assert (settings.slots, settings.slot_profile) == (2, profile)
    assert (settings.heap_bytes, settings.session_max_memory) == (6 * 2**30, 8 * 2**30)
