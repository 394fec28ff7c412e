"""What a TaskManager that somebody starts by hand makes of its configuration and its directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog

from minflinkd.config import Config, load_config
from minflinkd.daemon_options import resource_manager_options
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.resource_profile import ResourceProfile
from minflinkd.taskmanager import standalone
from minflinkd.taskmanager.settings import InvalidSettings, TaskManagerSettings, check_memory, read_secret
from minflinkd.taskmanager.standalone import LOCK, ResourceIdTaken, standalone_settings

TM, OTHER = ResourceId("tm-one"), ResourceId("tm-other")


@pytest.fixture(autouse=True)
def logging() -> Iterator[None]:
    """Logging is set up once in a process, and a test must undo it."""
    yield
    structlog.reset_defaults()


def settings_in(state: Path, resource_id: ResourceId = TM, **more: str) -> tuple[Config, TaskManagerSettings]:
    made = load_config(None, {}, {"jobmanager.rpc.port": "6123", "process.working-dir": str(state)} | more)
    return made, standalone_settings(made, {}, resource_id)


def test_a_configuration_says_where_the_daemon_is() -> None:
    """The keys are Flink's. Without any, the daemon's own address is used (R7)."""
    remote = load_config(None, {}, {"jobmanager.rpc.port": "6123", "jobmanager.rpc.address": "daemon.example"})
    settings = standalone_settings(remote, {"STATE_DIRECTORY": "/var/lib/minflinkd"}, TM)
    assert (settings.daemon_host, settings.daemon_port) == ("daemon.example", 6123)
    assert settings.working_directory == "/var/lib/minflinkd/taskmanagers/tm-one"
    assert settings.secret_file == "/var/lib/minflinkd/cluster.secret"
    assert settings.standalone
    local = load_config(None, {}, {"jobmanager.rpc.port": "6123"})
    assert standalone_settings(local, {}, TM).daemon_host == "127.0.0.1"


def test_one_that_the_daemon_started_in_a_pod_is_not_standalone_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    """It ends if its session does not start, and so the daemon learns why; the daemon may also be gone (R50)."""
    made, _ = settings_in(tmp_path)
    settings = standalone_settings(made, {}, TM, managed=True)
    assert (settings.standalone, settings.registration_timeout) == (False, 600.0)


def test_slots_in_a_pod_have_just_what_the_daemon_takes_for_the_default(tmp_path: Path) -> None:
    """If they had more, they would be kept for jobs that want more, and others would have Pods started (R40)."""
    made, _ = settings_in(
        tmp_path,
        **{
            "resourcemanager.driver": "kubernetes",
            "kubernetes.pod-template-file.taskmanager": "/pod.yaml",
            "jobmanager.rpc.address": "daemon.example",
            "security.secret-file": "/secret",
            "security.allow-unauthenticated": "true",
            "execution.checkpointing.dir": "s3://bucket/checkpoints",
            "taskmanager.resources": "{gpu: 4}",
        },
    )
    daemons, pods = (ResourceProfile(cpu=cores, memory=cores << 30, disk=cores << 40) for cores in (2, 64))
    settings = standalone_settings(made, {}, TM, pods, managed=True)
    assert settings.slot_profile == resource_manager_options(made, daemons).profile
    assert settings.slot_profile.amounts().keys() == {"memory", "off-heap", "gpu"}


def test_sizes_and_durations_are_plain_numbers_for_whoever_they_are_handed_to() -> None:
    """Sizes and durations go to the session child as JSON (R7)."""
    settings = standalone_settings(load_config(None, {}, {"jobmanager.rpc.port": "6123"}), {}, TM)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=TaskManagerSettings) == settings


def test_options_of_code_and_blobs_reach_a_taskmanager(tmp_path: Path) -> None:
    """Each arrives under the key that it has in the configuration (E1)."""
    given = {
        "classloader.resolve-order": "parent-first",
        "blob.fetch.retries": "7",
        "blob.service.cleanup.interval": "11 s",
        "blob.retention.interval": "13 s",
    }
    _, settings = settings_in(tmp_path, **given)
    told = (
        settings.resolve_order,
        settings.blob_fetch_retries,
        settings.blob_cleanup_interval,
        settings.blob_retention_interval,
    )
    assert told == ("parent-first", 7, 11.0, 13.0)


@pytest.mark.parametrize("port", ["0", "6000-6100"])
def test_a_port_that_only_the_daemon_knows_is_refused(port: str) -> None:
    """The TaskManager would look for the daemon for ever (R7)."""
    with pytest.raises(InvalidSettings, match=r"jobmanager\.rpc\.port"):
        standalone_settings(load_config(None, {}, {"jobmanager.rpc.port": port}), {}, TM)


def test_it_looks_for_a_daemon_without_end_unless_it_is_told_otherwise() -> None:
    """R15."""
    assert standalone_settings(load_config(None, {}, {"jobmanager.rpc.port": "6123"}), {}, TM).registration_timeout == 0
    patient = {"jobmanager.rpc.port": "6123", "taskmanager.registration.timeout": "2 min"}
    assert standalone_settings(load_config(None, {}, patient), {}, TM).registration_timeout == 120


def test_a_heap_larger_than_the_machine_is_refused_by_the_name_of_its_option(tmp_path: Path) -> None:
    """The JVM would start with it, and die when the memory is used (R5)."""
    _, settings = settings_in(tmp_path, **{"taskmanager.memory.heap.size": "64 GiB"})
    with pytest.raises(InvalidSettings, match=r"taskmanager\.memory\.heap\.size \(64 GiB\).*23\.5 GiB"):
        check_memory(settings, int(23.5 * 1024**3))
    check_memory(settings, 65 * 1024**3)


def test_a_secret_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    """On another host the secret must be copied; a TaskManager creates none (R7)."""
    with pytest.raises(InvalidSettings, match=r"secret cannot be read.*No such file") as refused:
        read_secret(tmp_path / "cluster.secret")
    assert "security.secret-file" in refused.value.hint


def test_an_id_is_taken_while_its_taskmanager_lives(tmp_path: Path) -> None:
    """Two processes with one name would replace each other's registration without end (R9)."""
    made, settings = settings_in(tmp_path)
    with standalone._home(made, settings):
        with pytest.raises(ResourceIdTaken, match="tm-one"), standalone._home(made, settings):
            pass
        assert (Path(settings.working_directory) / LOCK).exists()
    with standalone._home(made, settings):
        pass


def test_what_a_killed_taskmanager_left_is_removed_by_the_next_one_and_nothing_else_is(tmp_path: Path) -> None:
    """Nobody needs its state. Directories of living TaskManagers, and of the daemon's, are not touched (R7)."""
    local = str(tmp_path / "fast")
    made, settings = settings_in(tmp_path, **{"taskmanager.state.local.root-dir": local})
    killed, daemons = tmp_path / "taskmanagers" / "tm-killed", tmp_path / "taskmanagers" / "tm-daemons"
    for name in (f"{killed}/log", f"{killed}/blobs", f"{local}/tm-killed/attempt", f"{daemons}/state"):
        Path(name).mkdir(parents=True)
    (killed / LOCK).touch()
    (killed / "log" / "taskmanager.log").write_text("its last words")
    _, another = settings_in(tmp_path, OTHER)
    with standalone._home(made, another):
        (Path(another.working_directory) / "blobs").mkdir()
        with standalone._home(made, settings):
            assert [entry.name for entry in killed.iterdir()] == ["log"]
            assert not Path(local, "tm-killed").exists()
            assert (daemons / "state").exists()
            assert (Path(another.working_directory) / "blobs").exists()
    assert [entry.name for entry in Path(settings.working_directory).iterdir()] == ["log"]


def test_log_lines_go_to_the_console_and_to_the_file_that_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Log lines appear in the journal and in `minflinkd logs` (R7)."""
    made, _ = settings_in(tmp_path)
    with standalone._logging(made, tmp_path):
        standalone.log.info("both")
    standalone.log.info("console")
    written = (tmp_path / standalone.LOG).read_text()
    assert "both" in written
    assert "console" not in written
    assert "both" in (err := capsys.readouterr().err)
    assert "console" in err
