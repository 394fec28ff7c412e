from __future__ import annotations

from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.functions import pandas_udf


def twice(v: pd.Series) -> pd.Series:
    return v * 2


def doubled(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    return inputs["events"].where("v >= 20").select("id", "time", pandas_udf(twice, "bigint")("v").alias("twice"))
