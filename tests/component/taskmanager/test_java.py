"""Which Java a session would start, and the error for one that Spark cannot use. Programs stand in for JVMs."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.taskmanager.child.java import JavaTooOld, NoJava, check_java, find_java

JAVA_17 = 'openjdk version "17.0.15" 2025-04-15'


def java(directory: Path, *, says: str, exit_code: int = 0) -> Path:
    """Write a program `bin/java` in `directory`."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {exit_code}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("says", "version"),
    [
        (JAVA_17, 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "24-ea" 2025-03-18', 24),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "17.0.2" 2022-01-18', 17),
        ("a JVM of our own", None),
    ],
)
def test_java_17_and_later_is_taken(tmp_path: Path, says: str, version: int | None) -> None:
    """If it does not tell its version, Spark decides."""
    program = java(tmp_path, says=says)
    found = check_java({"PATH": str(program.parent)})
    assert (found.program, found.version) == (program, version)


@pytest.mark.parametrize(
    ("says", "version"), [('openjdk version "1.8.0_392"', 8), ('openjdk version "11.0.2" 2019', 11)]
)
def test_an_older_java_is_refused_with_its_version(tmp_path: Path, says: str, version: int) -> None:
    """Spark 4 needs Java 17 (issue 15, 9)."""
    program = java(tmp_path, says=says)
    with pytest.raises(JavaTooOld, match=f"{program} is Java {version}, and Spark needs Java 17"):
        check_java({"PATH": str(program.parent)})


def test_no_java_names_both_places_where_it_may_be(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match="java is not on the PATH, and JAVA_HOME is not set") as refused:
        check_java({"PATH": str(tmp_path)})
    assert "install Java 17" in refused.value.hint


def test_a_java_home_without_java_is_named_though_there_is_one_on_the_path(tmp_path: Path) -> None:
    """If JAVA_HOME is set, Spark's launcher looks nowhere else."""
    good = java(tmp_path / "good", says=JAVA_17)
    environ = {"PATH": str(good.parent), "JAVA_HOME": "/no/such/jdk"}
    with pytest.raises(NoJava, match="JAVA_HOME is /no/such/jdk, where there is no bin/java") as refused:
        check_java(environ)
    assert f"unset it, so that {good} is used" in refused.value.hint


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    good, old = java(tmp_path / "good", says=JAVA_17), java(tmp_path / "old", says='java version "1.8.0_1"')
    home = str(good.parent.parent)
    assert find_java({"PATH": str(old.parent), "JAVA_HOME": home}) == good
    assert find_java({"PATH": str(old.parent), "JAVA_HOME": ""}) == old


def test_a_java_that_does_not_run_says_why(tmp_path: Path) -> None:
    program = java(tmp_path, says="Unrecognized option: -Xnonsense", exit_code=1)
    with pytest.raises(NoJava, match="does not run: Unrecognized option: -Xnonsense"):
        check_java({"PATH": str(program.parent)})


def test_a_file_that_is_no_program_is_no_java(tmp_path: Path) -> None:
    program = java(tmp_path, says=JAVA_17)
    program.write_bytes(b"\x7fELF nonsense")
    with pytest.raises(NoJava, match="does not run"):
        check_java({"PATH": str(program.parent)})
