"""Spark's refusals in a user's words (J4): Spark's sentences, as it gave them."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException

from minflinkd.taskmanager.session.failures import build_failure
from minflinkd.taskmanager.session.refusals import REFUSALS, in_users_words

SAID = {  # by Spark; words of the problem, words of the hint
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
    """J4: the name of the thing at fault is kept."""
    problem, hint = in_users_words(said)
    assert SAID[said][0] in problem
    assert SAID[said][1] in hint


def test_what_is_not_known_stays_as_it_is() -> None:
    """J4: nothing is guessed."""
    assert in_users_words("[NEW_IN_SPARK_5] No.") == ("[NEW_IN_SPARK_5] No.", "")


def test_every_refusal_has_an_example() -> None:
    """J4: what to do next."""
    assert all(refusal.hint for refusal in REFUSALS)


def test_the_plan_of_a_stream_is_not_part_of_the_sentence() -> None:
    """J4: Spark marks the lines of a streaming plan with a tilde, others not."""
    for line in ("~Join Cross", "'Project ['a]", "+- Aggregate [a#1]", "!Filter"):
        error = AnalysisException(f"It is refused.;\n{line}\n:- ~Project [value#38L]\n")
        assert build_failure(error).message == "It is refused."
