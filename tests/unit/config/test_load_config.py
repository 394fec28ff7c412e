"""Reading a configuration from file, environment and command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.config import Config, ConfigError, Fault, load_config
from minflinkd.config.cluster_options import LogLevel
from minflinkd.config.load import parse_config
from minflinkd.config.origin import Layer, Origin
from minflinkd.config.values import PortRange
from minflinkd.daemon_kubernetes import POD_NAME
from minflinkd.daemon_options import restart_strategy
from minflinkd.jobgraph.model import RestartKind, RestartStrategy
from minflinkd.resourcemanager import process
from minflinkd.resourcemanager.kubernetes.template import POD_IP
from minflinkd.runtime import crash_points, private_files
from minflinkd.runtime.units import Duration, MemorySize


def faults(
    text: str, environ: dict[str, str] | None = None, overrides: dict[str, str] | None = None
) -> tuple[Fault, ...]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, environ or {}, overrides or {})
    return caught.value.faults


def test_without_a_file_the_defaults_hold() -> None:
    """Every option has a default (E20)."""
    assert load_config(None, {}, {}) == Config()


def test_a_failed_job_is_restarted_after_flinks_exponential_delay_by_default() -> None:
    """A second at first, half as long again each time, a minute at most, a tenth of it at random; after an hour without
    a failure it begins anew. It gives up never; and a job file that names no more than the kind has the same (R16).
    """
    flinks = RestartStrategy(
        kind=RestartKind.EXPONENTIAL_DELAY,
        attempts=None,
        initial_backoff=Duration(1),
        max_backoff=Duration(60),
        backoff_multiplier=1.5,
        jitter_factor=0.1,
        reset_backoff_threshold=Duration(3600),
    )
    assert restart_strategy(Config()) == flinks
    assert RestartStrategy() == flinks


def test_keys_may_be_nested_or_dotted_or_both() -> None:
    """Keys may be nested, dotted, or both (E20)."""
    dotted = parse_config("heartbeat.interval: 2s\nheartbeat.timeout: 9s\nrest.port: 1", {}, {})
    nested = parse_config("heartbeat: {interval: 2s, timeout: 9s}\nrest: {port: 1}", {}, {})
    mixed = parse_config("heartbeat:\n  interval: 2 s\nheartbeat.timeout: 9000 ms\nrest:\n  port: 1\n", {}, {})
    assert dotted == nested == mixed
    assert dotted.heartbeat.timeout == Duration(9)


def test_values_have_the_types_that_their_options_declare() -> None:
    """Options have types, and values have units (E20)."""
    config = parse_config(
        "log.level: DEBUG\nblob.server.port: 50100-50200\nblob.max-size: 1 GiB\nsecurity.allow-unauthenticated: true\n"
        "taskmanager.registration.timeout: 10 min\nrestart-strategy.exponential-delay.backoff-multiplier: 2\n",
        {},
        {},
    )
    assert config.log.level is LogLevel.DEBUG
    assert config.blob.server_port == PortRange(50100, 50200)
    assert config.blob.max_size == MemorySize(1 << 30)
    assert config.security.allow_unauthenticated is True
    assert config.taskmanager.registration_timeout == Duration(600)
    assert config.restart_strategy.exponential_delay.backoff_multiplier == 2.0


def test_the_environment_overrides_the_file_and_the_command_line_overrides_both() -> None:
    """The command line overrides the environment, and both override the file (E20)."""
    text = "rest.port: 1\nheartbeat.interval: 2 s\nslot.request.timeout: 3 s\n"
    environ = {"MINFLINKD_REST_PORT": "10", "MINFLINKD_HEARTBEAT_INTERVAL": "3 s", "HOME": "/"}
    config = parse_config(text, environ, {"rest.port": "100"})
    assert (config.rest.port, config.heartbeat.interval, config.slot.request_timeout) == (100, Duration(3), Duration(3))


def test_a_configuration_knows_where_each_option_was_set() -> None:
    """The last layer that sets an option is where its value is from; an option that nobody set has no origin (E17)."""
    text = "rest.port: 1\nheartbeat: {interval: 2 s,\n  timeout: 9 s}\nlog.level: INFO\n"
    config = parse_config(text, {"MINFLINKD_HEARTBEAT_INTERVAL": "3 s"}, {"rest.port": "100"}, name="a.yaml")
    assert config.origins == {
        "rest.port": (Origin(Layer.COMMAND_LINE),),
        "heartbeat.interval": (Origin(Layer.ENVIRONMENT, "MINFLINKD_HEARTBEAT_INTERVAL"),),
        "heartbeat.timeout": (Origin(Layer.FILE, "a.yaml:3"),),
        "log.level": (Origin(Layer.FILE, "a.yaml:4"),),  # though this is the default
    }
    assert config == parse_config("rest.port: 100\nheartbeat: {interval: 3 s, timeout: 9 s}", {}, {})


def test_a_map_knows_where_each_of_its_entries_was_set() -> None:
    """Each layer adds entries, and a later one replaces those of an earlier one (E17)."""
    text = "taskmanager.spark.conf:\n  spark.a: 1\n  spark.b: 2\n"
    config = parse_config(text, {}, {"taskmanager.spark.conf.spark.a": "3"}, name="a.yaml")
    assert config.origins["taskmanager.spark.conf"] == (
        Origin(Layer.COMMAND_LINE, entry="spark.a"),
        Origin(Layer.FILE, "a.yaml:3", entry="spark.b"),
    )


def test_spark_settings_are_a_map_that_every_source_adds_to() -> None:
    """Spark settings are a map of strings, in any of the forms (E20)."""
    text = "taskmanager:\n  spark:\n    conf:\n      spark.a: 1\n      spark.b.c: {d: yes}\n"
    environ = {"MINFLINKD_TASKMANAGER_SPARK_CONF": '{"spark.a": "2", "spark.e": "x,y"}'}
    config = parse_config(text, environ, {"taskmanager.spark.conf.spark.f": "3"})
    assert config.taskmanager.session.spark_conf == {
        "spark.a": "2",
        "spark.b.c.d": "yes",
        "spark.e": "x,y",
        "spark.f": "3",
    }


def test_an_option_may_be_called_by_its_other_name() -> None:
    """Options that Flink has too may have Flink's name, and also the name in our own documents (E20)."""
    config = parse_config("file-merging.max-file-size: 1 MiB\nslotmanager.redundant-taskmanager-num: 2", {}, {})
    assert config.checkpointing.max_file_size == 1 << 20
    assert config.resourcemanager.standby_taskmanagers == 2
    assert not parse_config("file-merging.enabled: false", {}, {}).checkpointing.file_merging


MUST = {
    "kubernetes.pod-template-file.taskmanager": "kubernetes.pod-template-file.taskmanager: /t.yaml\n",
    "jobmanager.rpc.address": "jobmanager.rpc.address: minflinkd-rpc\n",
    "security.secret-file": "security.secret-file: /secret\n",
    "execution.checkpointing.dir": "execution.checkpointing.dir: s3://bucket/checkpoints\n",
}
KUBERNETES = (
    "resourcemanager.driver: kubernetes\njobmanager.rpc.port: 6123\nsecurity.allow-unauthenticated: true\n"
    + "".join(MUST.values())
)


@pytest.mark.parametrize("text", ["", "# nothing\n", "heartbeat:\n  # interval: 1 s\n", "taskmanager.spark.conf: {}\n"])
def test_a_file_whose_options_are_all_commented_out_is_the_defaults(text: str) -> None:
    """The shipped file is like this (E20)."""
    assert parse_config(text, {}, {}) == Config()


def test_all_faults_are_named_at_once_with_line_value_what_is_allowed_and_the_nearest_key() -> None:
    """An unknown key or a wrong type stops the start, and the errors say all that is needed to repair it (E20)."""
    text = "rest:\n  port: 99999\nheartbeat.intervall: 1 s\n\nlog.level: LOUD\n"
    found = faults(text, {"MINFLINKD_BLOB_MAX_SIZE": "big"}, {"slot.request.timeot": "1 s"})
    assert [str(fault) for fault in found] == [
        "minflinkd.yaml:2: rest.port: '99999': is not allowed: a whole number, at least 0, at most 65535",
        "minflinkd.yaml:3: heartbeat.intervall: '1 s': no such option; did you mean heartbeat.interval?",
        "minflinkd.yaml:5: log.level: 'LOUD': is not allowed: one of DEBUG, INFO, WARNING, ERROR",
        "environment variable MINFLINKD_BLOB_MAX_SIZE: blob.max-size: 'big': is not allowed: "
        "a size such as 512 KiB, 64 MiB, 1 GiB, at least 1 B",
        "command line: slot.request.timeot: '1 s': no such option; did you mean slot.request.timeout?",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "security.allow-unauthenticated: maybe",
        "taskmanager.numberOfTaskSlots: 0",
        "taskmanager.numberOfTaskSlots: 1.5",
        "taskmanager.numberOfTaskSlots: [1, 2]",
        "taskmanager.numberOfTaskSlots:",
        "heartbeat.interval: -1 s",
        "restart-strategy.exponential-delay.backoff-multiplier: .nan",
        "restart-strategy.exponential-delay.jitter-factor: 1.5",
        "blob.server.port: 5-1",
        "blob.server.port: 0-10",
        "blob.server.port: 70000",
        "taskmanager.spark.conf: fast",
        "taskmanager.spark.conf: [a]",
        "rest.port: {}",
    ],
)
def test_a_value_of_another_type_is_refused(text: str) -> None:
    """A wrong type stops the start (E20)."""
    (fault,) = faults(text)
    assert fault.origin == "minflinkd.yaml:1"
    assert "is not allowed: " in fault.problem


def test_a_key_that_is_set_twice_is_refused_with_both_places() -> None:
    """Neither of two values is silently preferred, however the keys are written (E20)."""
    (fault,) = faults("rest.port: 1\nrest:\n  port: 2\n")
    assert fault.origin == "minflinkd.yaml:3"
    assert "minflinkd.yaml:1" in fault.problem
    (fault,) = faults("file-merging.max-file-size: 1\nexecution.checkpointing.file-merging.max-file-size: 2\n")
    assert "the first is file-merging.max-file-size at minflinkd.yaml:1" in fault.problem


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("rest:\n\tport: 1", 2),
        ("just a text", 1),
        ("- rest.port: 1", 1),
        ("a: &a\n  b: *a", 1),
        ("a: 1\n---\nb: 2", 2),
        ("a: [", 1),
    ],
)
def test_what_is_no_yaml_map_is_refused_with_its_line(text: str, line: int) -> None:
    """The error names the line (E20)."""
    found = faults(text)
    assert found[0].origin == f"minflinkd.yaml:{line}"
    assert "YAML" in found[0].problem


def test_a_file_that_cannot_be_read_is_a_fault_of_the_configuration(tmp_path: Path) -> None:
    """A start without the named file would be a start with the wrong options (E20)."""
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "absent.yaml", {}, {})
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "binary.yaml", {}, {})


def test_variables_that_are_no_options_are_refused_unless_they_belong_to_somebody_else() -> None:
    """A misspelt override must not be silently ignored. Variables of the CLI and of Kubernetes are accepted (E20)."""
    others = {
        "MINFLINKD_CONFIG": "x",
        "MINFLINKD_TOKEN": "x",
        "MINFLINKD_SERVICE_HOST": "x",
        "MINFLINKD_PORT": "tcp://x",
    }
    others |= {"MINFLINKD_PORT_8081_TCP_ADDR": "x", "MINFLINKD_REST_SERVICE_PORT_HTTP": "1"}
    assert parse_config("", others, {}) == Config()
    (fault,) = faults("", {"MINFLINKD_REST_PRT": "1"})
    assert fault.problem == "no such option; did you mean MINFLINKD_REST_PORT?"


@pytest.mark.parametrize("variable", [private_files.VARIABLE, crash_points.VARIABLE, process.TOKEN])
def test_variables_between_our_own_processes_are_no_options(variable: str) -> None:
    """A daemon sets them for its children, and reads its configuration again when it reloads (E20)."""
    assert parse_config("", {variable: "022"}, {}) == Config()


def test_secrets_do_not_appear_in_errors() -> None:
    """Sensitive options are masked everywhere (E40)."""
    (fault,) = faults("taskmanager.spark.conf: hunter2")
    assert "hunter2" not in str(fault)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("heartbeat.timeout: 1 s", "heartbeat.timeout", "must be longer than heartbeat.interval"),
        ("heartbeat.interval: 5 s", "heartbeat.interval", "must be longer than heartbeat.interval"),
        ("resourcemanager.min-taskmanagers: 9", "resourcemanager.min-taskmanagers", "must not be larger"),
        ("resourcemanager.standby-taskmanagers: 9", "resourcemanager.standby-taskmanagers", "must not be larger"),
        ("taskmanager.session.timeout: 1 s", "taskmanager.session.timeout", "must not be longer"),
        ("jobmanager.bind-host: 0.0.0.0", "jobmanager.bind-host", "security.allow-unauthenticated"),
        ("taskmanager.bind-host: 10.0.0.7", "taskmanager.bind-host", "security.allow-unauthenticated"),
        (
            "restart-strategy.exponential-delay.max-backoff: 1 ms",
            "restart-strategy.exponential-delay.max-backoff",
            "must not be longer",
        ),
        ("rest.bind-address: 0.0.0.0", "rest.bind-address", "security.allow-unauthenticated"),
        (
            "rest.bind-address: 0.0.0.0\nsecurity.tokens-file: /etc/tokens",  # whoever overhears one can use it
            "rest.bind-address",
            "security.allow-unauthenticated",
        ),
        (
            "security.tokens-file: /etc/tokens\nsecurity.allow-unauthenticated: true",
            "security.tokens-file",
            "nobody is asked for a token",
        ),
        ("rest.bind-address: '::'", "rest.bind-address", "security.allow-unauthenticated"),
        ("rest.bind-address: daemon.example", "rest.bind-address", "security.allow-unauthenticated"),
        ("blob.server.port: 8081", "blob.server.port", "cannot both be 8081"),
        ("taskmanager.spark.master: spark://a:7077", "taskmanager.spark.master", "taskmanager.state.local.root-dir"),
        ("resourcemanager.driver: standalone", "resourcemanager.driver", "jobmanager.rpc.port (0) must be one port"),
        *((KUBERNETES.replace(line, ""), "resourcemanager.driver", f"{key} must be set") for key, line in MUST.items()),
        (
            KUBERNETES.replace("jobmanager.rpc.port: 6123\n", ""),
            "resourcemanager.driver",
            "with resourcemanager.driver: kubernetes, jobmanager.rpc.port (0) must be one port",
        ),
        (
            KUBERNETES.replace("security.allow-unauthenticated: true\n", ""),
            "resourcemanager.driver",
            "whoever reaches them can run code: set security.ssl.internal.enabled: true",
        ),
        (
            f"taskmanager.run-as: etl\ntaskmanager.state.local.root-dir: /l\n{KUBERNETES}",
            "taskmanager.run-as",
            "securityContext in the Pod template",
        ),
    ],
)
def test_values_that_are_impossible_together_are_refused_where_they_were_set(text: str, key: str, words: str) -> None:
    """An impossible combination stops the start (E20). Addresses other than loopback need the explicit option (E40)."""
    (fault,) = faults(text)
    assert (fault.origin, fault.key) == ("minflinkd.yaml:1", key)
    assert words in fault.problem


def test_what_kubernetes_tells_a_pod_about_itself_is_no_option() -> None:
    """The variables have the prefix of options (R50)."""
    parse_config(KUBERNETES, {POD_IP: "10.0.0.9", POD_NAME: "minflinkd-0"}, {})


def test_with_pods_there_is_one_daemon() -> None:
    """An election beside Kubernetes was not tried (R50)."""
    found = faults(f"{KUBERNETES}high-availability.type: zookeeper\n")
    assert any("high-availability.type must be none" in fault.problem for fault in found)


def test_an_address_that_nobody_can_connect_to_is_refused() -> None:
    """TaskManagers on other hosts need an address that leads to the daemon, and to each other (R7, J11)."""
    wildcard = "security.allow-unauthenticated: true\njobmanager.bind-host: 0.0.0.0"
    (fault,) = faults(wildcard)
    assert fault.key == "jobmanager.bind-host"
    assert "jobmanager.rpc.address" in fault.problem
    parse_config(f"{wildcard}\njobmanager.rpc.address: daemon.example", {}, {})
    wildcard = "security.allow-unauthenticated: true\ntaskmanager.bind-host: 0.0.0.0"
    (fault,) = faults(wildcard)
    assert fault.key == "taskmanager.bind-host"
    assert "taskmanager.host" in fault.problem
    parse_config(f"{wildcard}\ntaskmanager.host: worker.example", {}, {})


@pytest.mark.parametrize(
    "text",
    [
        "rest.bind-address: '::1'",
        "rest.bind-address: localhost",
        "rest.bind-address: 0.0.0.0\nsecurity.allow-unauthenticated: true",
        "resourcemanager.driver: standalone\njobmanager.rpc.port: 6123",
        KUBERNETES,
        f"{KUBERNETES}taskmanager.bind-host: 10.0.0.9\ntaskmanager.host: 10.0.0.9",
        "jobmanager.rpc.address: daemon.example",
        "blob.server.port: 8081-8090",
        "jobmanager.rpc.port: 0\nblob.server.port: 0\nrest.port: 0",
    ],
)
def test_values_that_are_possible_together_are_accepted(text: str) -> None:
    """Loopback needs no permission (E40). A range of ports skips a port that is taken (E20)."""
    parse_config(text, {}, {})
