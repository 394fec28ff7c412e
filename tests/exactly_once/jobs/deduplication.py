from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame


def unique(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    return inputs["events"].dropDuplicates(["id", "time"])
