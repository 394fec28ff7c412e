"""The Python part of the clicks job: an artifact. Its functions are those of clicks_spark.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlparse

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.pandas.functions import pandas_udf


def campaign_of(urls: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for batch in urls:
        yield batch.map(lambda url: parse_qs(urlparse(url).query).get("utm_campaign", ["none"])[0])


def unique(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    """Return each click once, with the campaign in its URL."""
    campaign = pandas_udf(campaign_of, "string")  # type: ignore[call-overload]  # expects pd.Series[str], no type at runtime
    return inputs["clicks"].dropDuplicates(["click_id", "time"]).withColumn("campaign", campaign("url"))
