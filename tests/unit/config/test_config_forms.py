"""A configuration that is shown, handed on, compared or documented."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minflinkd.config import Config
from minflinkd.config.combinations import impossible
from minflinkd.config.declaration import Option, Reload
from minflinkd.config.directories import (
    blob_directory,
    checkpoint_uri,
    ha_storage_uri,
    savepoint_uri,
    secret_file,
    state_directory,
)
from minflinkd.config.load import parse_config
from minflinkd.config.options import options
from minflinkd.config.reload import changes
from minflinkd.config.render import config_to_yaml, reference_file, reference_page
from minflinkd.config.values import MASK, PortRange, format_value, is_sensitive
from minflinkd.runtime.units import Duration, MemorySize

REPOSITORY = Path(__file__).parents[3]


def values_of(option: Option) -> st.SearchStrategy[object]:
    """Return a strategy for any value that the option allows."""
    low = option.at_least or 0
    numbers: dict[type, st.SearchStrategy[object]] = {
        bool: st.booleans(),
        int: st.integers(int(low), int(option.at_most or 1 << 40)),
        float: st.floats(low, option.at_most or 1e9),
        Duration: st.floats(low, 1e9).map(Duration),
        MemorySize: st.integers(int(low), 1 << 50).map(MemorySize),
        PortRange: st.tuples(st.integers(1, 9999), st.integers(10000, 65535)).map(lambda ports: PortRange(*ports)),
        str: st.text(st.characters(exclude_categories=["Cs"])),
        dict: st.dictionaries(st.text("abc.", min_size=1), st.text(st.characters(exclude_categories=["Cs"]))),
    }
    found = numbers[option.kind] if option.kind in numbers else st.sampled_from(_members(option.kind))
    return st.one_of(st.none(), found) if option.optional else found


def _members(kind: type) -> list[object]:
    assert issubclass(kind, StrEnum)
    return list(kind)


CONFIGS = st.fixed_dictionaries({}, optional={o: values_of(o) for o in options()}).map(Config().with_values)


@given(st.data())
def test_a_configuration_handed_on_as_a_file_reads_back_as_itself(data: st.DataObject) -> None:
    """A TaskManager runs with exactly what its daemon has (E20)."""
    changed = data.draw(st.lists(st.sampled_from(options()), max_size=3, unique=True))
    config = Config().with_values({option: data.draw(values_of(option), label=option.key) for option in changed})
    assume(not list(impossible(config)))
    assert parse_config(config_to_yaml(config), {}, {}) == config


def test_a_file_for_a_taskmanager_holds_what_differs_from_the_defaults_secrets_included() -> None:
    """The file is for a process of the same cluster, not for people (E20)."""
    text = 'rest.port: 1\ntaskmanager.spark.conf: {"spark.my.password": "a: \\"b\\" #c"}\n'
    config = parse_config(text, {}, {})
    assert config_to_yaml(config) == text
    assert parse_config(config_to_yaml(config), {}, {}) == config
    assert config_to_yaml(Config()) == ""


def test_a_configuration_cannot_be_changed_in_place() -> None:
    """A configuration is a value. A reload makes another one."""
    with pytest.raises(FrozenInstanceError):
        Config().rest.port = 1  # type: ignore[misc]


def test_every_option_is_shown_with_its_value_and_whether_it_is_the_default() -> None:
    """`GET /jobmanager/config` shows them (E1)."""
    items = {item.key: item for item in parse_config("heartbeat.interval: 2000 ms", {}, {}).as_items()}
    assert len(items) == len(options())
    assert items["heartbeat.interval"][1:4] == ("2 s", False, False)
    assert items["taskmanager.registration.timeout"][1:] == ("null", True, False, ())


def test_entries_that_look_like_secrets_are_masked_where_a_configuration_is_shown() -> None:
    """Sensitive options are masked everywhere (E40)."""
    text = "taskmanager.spark.conf: {spark.hadoop.fs.s3a.secret.key: hunter2, spark.sql.ansi.enabled: false}"
    items = {item.key: item for item in parse_config(text, {}, {}).as_items()}
    item = items["taskmanager.spark.conf"]
    assert item.value == f'{{"spark.hadoop.fs.s3a.secret.key": "{MASK}", "spark.sql.ansi.enabled": "false"}}'


def test_credentials_of_storages_are_masked_where_a_configuration_is_shown() -> None:
    """Options of plugins are masked too, although the configuration does not know them one by one (E40)."""
    text = "storage.s3.secret-key: hunter2\nstorage.abfs.connection-string: hunter2\nstorage.s3.endpoint: http://here\n"
    items = {item.key: item for item in parse_config(text, {}, {}).as_items()}
    shown = f'{{"s3.secret-key": "{MASK}", "abfs.connection-string": "{MASK}", "s3.endpoint": "http://here"}}'
    assert items["storage"].value == shown


@pytest.mark.parametrize(
    ("name", "sensitive"),
    [
        ("spark.hadoop.fs.s3a.access.key", True),
        ("spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net", True),
        ("spark.ssl.keyPassword", True),
        ("MY_API_KEY", True),
        ("spark.sql.shuffle.partitions", False),
        ("spark.hadoop.fs.s3a.endpoint", False),
    ],
)
def test_a_name_gives_away_whether_it_holds_a_secret(name: str, sensitive: bool) -> None:
    """Sensitive values are masked everywhere (E40)."""
    assert is_sensitive(name) is sensitive


def test_a_reload_applies_live_options_and_names_those_that_need_a_restart() -> None:
    """SIGHUP applies what can change at run time, and says what needs a restart (E20)."""
    old = parse_config("rest.port: 1\nlog.level: INFO", {}, {})
    new = parse_config("rest.port: 2\nlog.level: DEBUG\nresourcemanager.standby-taskmanagers: 3", {}, {})
    found = changes(old, new)
    assert found.live == ("resourcemanager.standby-taskmanagers",)
    assert found.restart == ("rest.port", "log.level")
    assert found.config == parse_config("rest.port: 1\nresourcemanager.standby-taskmanagers: 3", {}, {})
    assert changes(old, old).config == old


def test_after_a_reload_an_option_that_needs_a_restart_is_still_from_where_it_was_set_before() -> None:
    """What is shown beside a value is where that value is from, not where the next start will read another (E17)."""
    old = parse_config("rest.port: 1", {}, {}, name="a.yaml")
    new = parse_config("log.level: INFO\nrest.port: 2\nresourcemanager.standby-taskmanagers: 3", {}, {}, name="a.yaml")
    origins = changes(old, new).config.origins
    assert {key: [str(one) for one in found] for key, found in origins.items()} == {
        "rest.port": ["a.yaml:1"],
        "log.level": ["a.yaml:1"],
        "resourcemanager.standby-taskmanagers": ["a.yaml:3"],
    }
    assert "rest.port" not in changes(Config(), new).config.origins


@given(CONFIGS, CONFIGS)
def test_after_a_reload_only_options_that_need_a_restart_still_differ(old: Config, new: Config) -> None:
    """The two reload classes cover every option (E20)."""
    left = changes(changes(old, new).config, new)
    assert left.live == ()
    assert set(left.restart) <= {option.key for option in options() if option.reload is Reload.RESTART}


def test_every_option_has_a_text_a_key_and_a_variable_of_its_own() -> None:
    """Every option is declared in one place, and an override means exactly one option (E20)."""
    names = [name for option in options() for name in (option.key, *option.aliases)]
    assert len(set(names)) == len(names)
    assert len({option.variable for option in options()}) == len(options())
    assert all(option.text.endswith((".", "null: without limit.")) for option in options())


def test_the_defaults_are_allowed_and_possible_together() -> None:
    """The daemon starts without a file, and each default can be written in one (E20)."""
    text = "".join(f"{o.key}: {format_value(o.default) or repr('')}\n" for o in options())
    assert parse_config(text, {}, {}) == Config()


def test_the_shipped_file_is_what_the_declarations_say() -> None:
    """To repair: python -m minflinkd.config yaml > config/minflinkd.yaml (E20)."""
    assert (REPOSITORY / "config" / "minflinkd.yaml").read_text(encoding="utf-8") == reference_file()


def test_the_shipped_file_can_be_used_as_it_is_and_with_every_option_uncommented() -> None:
    """The file has every option with its default (E20)."""
    assert parse_config(reference_file(), {}, {}) == Config()
    every = "\n".join(
        line.removeprefix("#") for line in reference_file().splitlines() if line.startswith("#") and line[1:2].islower()
    )
    assert len(every.splitlines()) == len(options())
    assert parse_config(every, {}, {}) == Config()


def test_the_page_of_the_documentation_is_what_the_declarations_say() -> None:
    """To repair: python -m minflinkd.config markdown > docs/configuration.md (E20)."""
    assert (REPOSITORY / "docs" / "configuration.md").read_text(encoding="utf-8") == reference_page()


def test_the_state_directory_is_the_named_one_then_systemds_then_the_users() -> None:
    """No option has to be set to start (E25)."""
    environ = {"STATE_DIRECTORY": "/var/lib/minflinkd:/var/lib/other", "XDG_STATE_HOME": "/x", "HOME": "/home/u"}
    named = parse_config("process.working-dir: /srv/state", {}, {})
    assert state_directory(named, environ) == Path("/srv/state")
    assert state_directory(Config(), environ) == Path("/var/lib/minflinkd")
    assert state_directory(Config(), {"XDG_STATE_HOME": "/x", "HOME": "/home/u"}) == Path("/x/minflinkd")
    assert state_directory(Config(), {"HOME": "/home/u"}) == Path("/home/u/.local/state/minflinkd")


def test_what_has_no_place_of_its_own_lies_in_the_state_directory() -> None:
    """An empty directory option has a defined meaning (E20)."""
    state = Path("/state")
    assert checkpoint_uri(Config(), state) == "file:///state/checkpoints"
    assert savepoint_uri(Config(), state) == "file:///state/savepoints"
    assert ha_storage_uri(Config(), state) == "file:///state/ha"
    assert blob_directory(Config(), state, "1234") == Path("/state/blobs")
    assert secret_file(Config(), state) == Path("/state/cluster.secret")
    text = "execution.checkpointing.dir: s3://b/c\nhigh-availability.storageDir: s3://b/h\nblob.storage.directory: /b"
    config = parse_config(text, {}, {})
    assert (checkpoint_uri(config, state), ha_storage_uri(config, state)) == ("s3://b/c", "s3://b/h")
    assert savepoint_uri(config, state) == "s3://b/c/savepoints", "in a storage that outlives the machine, too"
    assert blob_directory(config, state, "1234") == Path("/b/1234")
