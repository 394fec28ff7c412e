from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.functions import unix_millis
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

GAP = 20_000  # milliseconds
COLUMNS = ["k", "since", "heard"]
ROWS = "k STRING, since BIGINT, heard BIGINT"  # `heard`: how many events of the key came before


def silences_between(rows: pd.DataFrame, last: int | None, heard: int) -> tuple[list[tuple[int, int]], int, int]:
    found: list[tuple[int, int]] = []
    for ms in rows.sort_values(["ms", "id"])["ms"]:
        if last is not None and ms - last > GAP:
            found.append((last, heard))
        last, heard = int(ms), heard + 1
    assert last is not None
    return found, last, heard


class Silences(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.last = handle.getValueState("last", "ms BIGINT, told BOOLEAN")
        self.heard = handle.getValueState("heard", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        last, told = self.last.get() or (None, True)
        (heard,) = self.heard.get() or (0,)
        if last is not None and not told:
            self.handle.deleteTimer(last + GAP)
        found, now_last, heard = silences_between(pd.concat(rows), None if told else last, heard)
        self.last.update((now_last, False))
        self.heard.update((heard,))
        self.handle.registerTimer(now_last + GAP)
        yield pd.DataFrame([(key[0], *silence) for silence in found], columns=COLUMNS)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        (last, _), (heard,) = self.last.get(), self.heard.get()
        self.last.update((last, True))
        yield pd.DataFrame([(key[0], last, heard)], columns=COLUMNS)

    def close(self) -> None:
        pass


def silences(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    rows = inputs["events"].withColumn("ms", unix_millis("time")).groupBy("k")
    return rows.transformWithStateInPandas(Silences(), outputStructType=ROWS, outputMode="append", timeMode="eventTime")


def batch_silences(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    """The same for a batch, where no timer would fire."""

    def of_key(key: tuple[str], rows: pd.DataFrame) -> pd.DataFrame:
        found, last, heard = silences_between(rows, None, 0)
        return pd.DataFrame([(*key, *silence) for silence in (*found, (last, heard))], columns=COLUMNS)

    return inputs["events"].withColumn("ms", unix_millis("time")).groupBy("k").applyInPandas(of_key, ROWS)
