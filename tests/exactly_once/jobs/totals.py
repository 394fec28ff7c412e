from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

ROWS = "id BIGINT, k STRING, n BIGINT, total BIGINT, alike BIGINT"


class Totals(StatefulProcessor):
    """For each event of a key, in the order of time: how many came, their sum, and how many ended in the same digit."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.sum = handle.getValueState("sum", "n BIGINT, total BIGINT")
        self.digits = handle.getMapState("digits", "digit BIGINT", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        n, total = self.sum.get() or (0, 0)
        for row in sorted(rows, key=lambda row: (row.time, row.id)):
            n, total, digit = n + 1, total + row.v, (row.v % 10,)
            alike = (self.digits.getValue(digit)[0] if self.digits.containsKey(digit) else 0) + 1
            self.digits.updateValue(digit, (alike,))
            yield Row(id=row.id, k=key[0], n=n, total=total, alike=alike)
        self.sum.update((n, total))

    def close(self) -> None:
        pass


def totals(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    rows = inputs["events"].groupBy("k")
    return rows.transformWithState(Totals(), outputStructType=ROWS, outputMode="append", timeMode="none")
