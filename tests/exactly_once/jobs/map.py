from __future__ import annotations

from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.functions import pandas_udf


def size(square: pd.Series) -> pd.Series:
    return (square > 2_500).map({True: "large", False: "small"})


def sized(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    return inputs["odd"].withColumn("size", pandas_udf(size, "string")("square"))
