"""What a session that does not start has printed, and what the error says. The texts are from real failures."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace as copy

from minflinkd.taskmanager.child.protocol import SessionConfig
from minflinkd.taskmanager.child.start_failure import LONGEST, printed_since, start_failure

GATEWAY = (
    "the session could not be built: [internal] PySparkRuntimeError: [JAVA_GATEWAY_EXITED] Java gateway process exited"
)
ENDED = "the session child ended (exit code 1)"
CONFIG = SessionConfig(name="tm-1", slots=1, working_directory="/w", log_directory="/l", heap_bytes=8 * 1024**3)


@pytest.mark.parametrize(
    "printed",
    [
        "JAVA_HOME is not set\n",
        "/usr/bin/env: \u2018bash\u2019: No such file or directory\n",
        ".../bin/spark-class: line 71: /opt/java/bin/java: No such file or directory\n"
        ".../bin/spark-class: line 97: CMD: bad array subscript\n",
    ],
)
def test_a_missing_java_is_named_with_where_it_is_looked_for(printed: str) -> None:
    """A missing `java` is reported with the places that were searched (R5)."""
    assert start_failure(GATEWAY, printed, CONFIG) == (
        "no Java was found: it must be on the PATH, or JAVA_HOME must name it"
    )


@pytest.mark.parametrize(
    ("printed", "why"),
    [
        (
            "Error occurred during initialization of VM\nCould not reserve enough space for 8388608KB object heap\n",
            "Could not reserve enough space for 8388608KB object heap",
        ),
        (
            "OpenJDK 64-Bit Server VM warning: os::commit_memory(...) failed; error='Not enough space' (errno=12)\n"
            "#\n# There is insufficient memory for the Java Runtime Environment to continue.\n"
            "# Native memory allocation (mmap) failed to map 34359738368 bytes.\n",
            "insufficient memory",
        ),
    ],
)
def test_a_heap_that_the_jvm_does_not_get_is_named_by_its_option(printed: str, why: str) -> None:
    """The cause is a wrong taskmanager.memory (R5)."""
    text = start_failure(GATEWAY, printed, CONFIG)
    assert text == f"the JVM does not start with taskmanager.memory.heap.size 8 GiB: {why}"


def test_a_heap_that_another_option_sets_is_named_by_that_one() -> None:
    """The error names the option to change (R5)."""
    config = copy(CONFIG, conf={"spark.driver.memory": "900t"})
    printed = "Error occurred during initialization of VM\nCould not reserve enough space for object heap\n"
    text = start_failure(GATEWAY, printed, config)
    assert text.startswith("the JVM does not start with spark.driver.memory 900t (taskmanager.spark.conf): Could not")


@pytest.mark.parametrize(
    ("reason", "printed", "text"),
    [
        (
            "the session could not be built: [internal] ModuleNotFoundError: No module named 'pyspark'",
            "{...}\n",
            "the session could not be built: [internal] ModuleNotFoundError: No module named 'pyspark'",
        ),
        (
            ENDED,
            "Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named 'structlog'\n",
            "ModuleNotFoundError: No module named 'structlog'",
        ),
        (
            GATEWAY,
            "Exception in thread \"main\" org.apache.spark.SparkException: Could not parse Master URL: 'x'\n\tat a.b\n",
            "org.apache.spark.SparkException: Could not parse Master URL: 'x'",
        ),
        (
            GATEWAY,
            "Error: Could not create the Java Virtual Machine.\nUnrecognized VM option 'Nonsense'\n",
            "Unrecognized VM option 'Nonsense'",
        ),
        (
            GATEWAY,
            "java.lang.UnsupportedClassVersionError: org/apache/spark/launcher/Main has been compiled by ...\n",
            "this Java is too old for Spark: Java 17 must be first on the PATH, or JAVA_HOME must name it",
        ),
        ("the session was not ready within 90 s", "", "the session was not ready within 90 s"),
    ],
)
def test_what_went_wrong_is_said_in_one_line(reason: str, printed: str, text: str) -> None:
    """Examples: a missing Python package, a wrong option, or only what the supervisor saw (R5)."""
    assert start_failure(reason, printed, CONFIG) == text


def test_an_error_of_many_lines_becomes_one_of_bearable_length() -> None:
    """An error is shown in tables and in a job's error (R5)."""
    text = start_failure("several\nlines\n" * 1000, "", CONFIG)
    assert text.startswith("several lines several lines")
    assert len(text) == LONGEST
    assert "\n" not in text


def test_only_what_was_printed_since_the_start_counts(tmp_path: Path) -> None:
    """The log holds the output of all earlier children as well (R5)."""
    log = tmp_path / "session.log"
    assert printed_since(log, 0) == ""
    log.write_text("JAVA_HOME is not set\n")
    offset = log.stat().st_size
    with log.open("a") as file:
        file.write("now\n")
    assert printed_since(log, offset) == "now\n"
