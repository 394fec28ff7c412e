"""A session's settings for a Spark cluster, and what stops it from starting."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minflinkd.taskmanager.child.protocol import SessionConfig
from minflinkd.taskmanager.session import reach
from minflinkd.taskmanager.session.spark import session as spark
from minflinkd.taskmanager.session.spark.jvm import properties


def config(**fields: Any) -> SessionConfig:
    return SessionConfig(name="tm", slots=3, working_directory="/w", log_directory="/l", **fields)


@pytest.mark.parametrize("master", ["", "local", "local[7]"])
def test_a_local_session_stays_on_loopback(master: str) -> None:
    """Nobody else has to reach it (R7)."""
    settings = spark.settings(config(master=master))
    assert (settings["spark.master"], settings["spark.driver.host"]) == (master or "local[3]", "127.0.0.1")
    assert "spark.cores.max" not in settings


def test_a_session_on_a_cluster_takes_its_slots_and_is_reached_the_way_it_reaches_the_master() -> None:
    """The slots set cores and memory; the master's route sets the address. The operator's settings win (R7)."""
    settings = spark.settings(config(master="spark://127.0.0.1:7077", heap_bytes=1 << 30))
    assert (settings["spark.cores.max"], settings["spark.executor.memory"]) == ("3", "1024m")
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    chosen = spark.settings(config(master="spark://127.0.0.1:7077", conf={"spark.driver.host": "10.0.0.1"}))
    assert chosen["spark.driver.host"] == "10.0.0.1"


@pytest.mark.parametrize(
    ("master", "authenticate"),
    [
        ("", "true"),
        ("local[7]", "true"),
        ("yarn", "true"),
        ("k8s://https://a:443", "true"),
        ("spark://a:7077", None),
        ("local-cluster[1,2,512]", None),
    ],
)
def test_sparks_own_connections_are_authenticated_where_spark_makes_the_secret(
    master: str, authenticate: str | None
) -> None:
    """A standalone cluster has a secret of its own, or none, and only its operator knows it (E40)."""
    settings = spark.settings(config(master=master))
    assert settings.get("spark.authenticate") == authenticate
    assert spark.settings(config(conf={"spark.authenticate": "false"}))["spark.authenticate"] == "false"


def test_a_properties_file_keeps_what_java_would_change() -> None:
    """Java joins lines that end with a backslash, cuts leading spaces, and ends a key at `=`, `:` or a space."""
    written = properties({"a b": "c:\\d", "k=1": " x \\", "n": "1\n2", "u": "ü", "empty": ""})
    assert written == "a\\ b=c:\\\\d\nk\\=1=\\ x \\\\\nn=1\\n2\nu=ü\nempty=\n"


def test_the_code_of_jobs_lies_where_executors_reach_it() -> None:
    """The code is on their Python path after the operator's entries. Each session has its own directory (B30)."""
    here = spark.code_directory(config())
    shared = spark.code_directory(config(master="spark://127.0.0.1:7077", state_directory="/shared/tm"))
    assert (str(here), str(shared)) == ("/w/code", "/shared/tm/code-w")
    given = config(conf={"spark.executorEnv.PYTHONPATH": "/opt/more"})
    assert spark.settings(given)["spark.executorEnv.PYTHONPATH"] == "/opt/more:/w/code:/w/code/native"


@pytest.mark.parametrize(
    "master", ["yarn", "k8s://https://a:443", "local-cluster[1,1,512]", "spark://no.such.host.invalid:1"]
)
def test_where_no_route_is_known_spark_chooses_the_address(master: str) -> None:
    """Loopback would certainly be wrong (R7)."""
    assert "spark.driver.host" not in spark.settings(config(master=master))


def session_with(tmp_path: Path, visit: Any) -> Any:
    """Return a session whose executors answer as `visit(place)` does."""
    context = SimpleNamespace(
        parallelize=lambda numbers, _: SimpleNamespace(
            map=lambda function: SimpleNamespace(collect=lambda: [visit(function, number) for number in numbers])
        )
    )
    state = tmp_path / "state"
    return SimpleNamespace(
        state_directory=str(state), config=config(), spark=SimpleNamespace(sparkContext=context), path=state
    )


def test_executors_that_share_the_directory_are_accepted(tmp_path: Path) -> None:
    """Executors write a file, which is then found here. Nothing of it is left (C11)."""
    session = session_with(tmp_path, lambda function, number: function(number))
    reach.check_executors(session)
    assert list(session.path.iterdir()) == []


def test_an_executor_with_another_directory_at_that_path_is_named(tmp_path: Path) -> None:
    """The executor reports success, but its file is nowhere to be seen (C11)."""
    session = session_with(tmp_path, lambda function, number: ("node7", None, "elsewhere"))
    with pytest.raises(reach.StateDirectoryUnreachable, match=r"executor on node7 does not share .*state"):
        reach.check_executors(session)
    assert list(session.path.iterdir()) == []


def test_an_executor_without_the_directory_says_so(tmp_path: Path) -> None:
    """The error has the reason of its operating system (C11)."""

    def visit(function: Any, number: int) -> Any:
        for entry in session.path.iterdir():
            (entry / "token").unlink(missing_ok=True)
        return function(number)

    session = session_with(tmp_path, visit)
    with pytest.raises(reach.StateDirectoryUnreachable, match="No such file or directory"):
        reach.check_executors(session)
