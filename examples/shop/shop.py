"""The Python part of the shop's job: an artifact."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame


def unique(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    """Return each click once. A click that comes again has the same time, so its state goes with the watermark."""
    return inputs["clicks"].dropDuplicates(["click_id", "time"])
