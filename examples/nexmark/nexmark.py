"""What Nexmark's queries 13 and 14 want of Python: an artifact of their jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr
from pyspark.sql.pandas.functions import pandas_udf


def enriched(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    """Query 13: each bid with the value that the side input has for its auction. The file is read as a table."""
    bid = inputs["bid"]
    side = bid.sparkSession.read.schema("key BIGINT, value STRING").csv(f"{params['input']}/side_input.csv")
    return bid.join(side, expr("mod(auction, 10000) = key")).select("auction", "bidder", "price", "dateTime", "value")


def count_c(texts: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for batch in texts:
        yield batch.str.count("c")


def counted(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    """Query 14's user-defined function: how many letters c there are in `extra`."""
    count = pandas_udf(count_c, "long")  # type: ignore[call-overload]  # wants pd.Series[str], not a type at runtime
    return inputs["bid"].withColumn("c_counts", count("extra"))
