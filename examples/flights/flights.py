"""The Python part of the flights job: an artifact that runs in the TaskManager and in its Python workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.functions import col
from pyspark.sql.pandas.functions import pandas_udf


def delay_class(minutes: Iterator[pd.Series]) -> Iterator[pd.Series]:
    """Classify each delay: early, on time (less than 15 minutes late), late (less than 60), very late."""
    bins = [float("-inf"), 0, 15, 60, float("inf")]
    for batch in minutes:
        yield pd.cut(batch, bins, right=False, labels=["early", "on time", "late", "very late"]).astype(str)


def clean(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    """Return the flights that did leave, from the params' airport if they name one, with the class of their delay."""
    flights = inputs["flights"].where(col("dep_delay").isNotNull())
    if params.get("origin"):
        flights = flights.where(col("origin") == params["origin"])
    classify = pandas_udf(delay_class, "string")  # type: ignore[call-overload]  # expects pd.Series[str], no type at runtime
    return flights.withColumn("delay_class", classify("dep_delay"))
