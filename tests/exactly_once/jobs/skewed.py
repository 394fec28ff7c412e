from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql.functions import pandas_udf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

PER_ROW = 0.01  # seconds for each row


def costly(v: pd.Series) -> pd.Series:
    time.sleep(PER_ROW * len(v))
    return v


def slowed(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    return inputs["events"].withColumn("v", pandas_udf(costly, "bigint")("v"))  # a worker can import this module


def batch_slowed(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    return inputs["events"]


class Seen(StatefulProcessor):
    """Each event, with the number of times that it has come."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.times = handle.getMapState("times", "id BIGINT, v BIGINT", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            event = (row.id, row.v)
            n = (self.times.getValue(event)[0] if self.times.containsKey(event) else 0) + 1
            self.times.updateValue(event, (n,))
            yield Row(id=row.id, k=key[0], v=row.v, n=n)

    def close(self) -> None:
        pass


def counted(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    rows = inputs["both"].groupBy("k")
    structure = "id BIGINT, k STRING, v BIGINT, n BIGINT"
    return rows.transformWithState(Seen(), outputStructType=structure, outputMode="append", timeMode="none")
