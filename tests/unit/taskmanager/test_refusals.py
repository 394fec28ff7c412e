"""Spark's refusals in a user's words (J4). The tests use Spark's own sentences."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException

from minflinkd.taskmanager.session.spark.failures import build_failure
from minflinkd.taskmanager.session.spark.refusals import REFUSALS, in_users_words

SAID = {  # Spark's sentence; words of the problem, words of the hint
    "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure the provider name is correct and the "
    "package is properly registered and compatible with your Spark version. SQLSTATE: 42K02": (
        "no source format delta in",
        ".jar",
    ),
    "[PATH_NOT_FOUND] Path does not exist: file:/data/in. SQLSTATE: 42K03": (
        "nothing at file:/data/in",
        "may be empty",
    ),
    "Data source jdbc does not support streamed reading.": ("format jdbc cannot be read", "spark.read.format('jdbc')"),
    "RuntimeException: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found": (
        "no client for this kind of path (s3a)",
        "HDFS",
    ),
    "Except on a streaming DataFrame/Dataset on the right is not supported": ("Except", "SEMI"),
    "Intersect of streaming DataFrames/Datasets is not supported": ("Intersect", "SEMI"),
    "applyInPandasWithState in append mode is not supported after aggregation on a streaming DataFrame/Dataset": (
        "not supported after aggregation",
        "exchange: true",
    ),
    "monotonically_increasing_id() is not supported with streaming DataFrames/Datasets": ("monotonically", "uuid()"),
}


@pytest.mark.parametrize("said", SAID)
def test_what_spark_says_becomes_a_sentence_and_an_example(said: str) -> None:
    """The name of the element at fault is kept (J4)."""
    problem, hint = in_users_words(said)
    assert SAID[said][0] in problem
    assert SAID[said][1] in hint


def test_what_is_not_known_stays_as_it_is() -> None:
    """Nothing is guessed (J4)."""
    assert in_users_words("[NEW_IN_SPARK_5] No.") == ("[NEW_IN_SPARK_5] No.", "")


def test_every_refusal_has_an_example() -> None:
    """An example says what to do next (J4)."""
    assert all(refusal.hint for refusal in REFUSALS)


def test_the_plan_of_a_stream_is_not_part_of_the_sentence() -> None:
    """Spark marks the lines of a streaming plan with a tilde, and other lines not (J4)."""
    for line in ("~Join Cross", "'Project ['a]", "+- Aggregate [a#1]", "!Filter"):
        error = AnalysisException(f"It is refused.;\n{line}\n:- ~Project [value#38L]\n")
        assert build_failure(error).message == "It is refused."
