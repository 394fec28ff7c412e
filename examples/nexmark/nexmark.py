"""The Python parts of Nexmark's queries 13 and 14: an artifact of their jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.pandas.functions import pandas_udf


def enriched(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    """Query 13: add to each bid the side input's value for its auction. The file is read as a table."""
    bid = inputs["bid"]
    side = bid.sparkSession.read.schema("key BIGINT, value STRING").csv(f"{params['input']}/side_input.csv")
    return bid.join(side, expr("mod(auction, 10000) = key")).select("auction", "bidder", "price", "dateTime", "value")


def count_c(texts: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for batch in texts:
        yield batch.str.count("c")


def counted(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    """Query 14's user-defined function: count the letters c in `extra`."""
    count = pandas_udf(count_c, "long")  # type: ignore[call-overload]  # expects pd.Series[str], which is no type at runtime
    return inputs["bid"].withColumn("c_counts", count("extra"))
