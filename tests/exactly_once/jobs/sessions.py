from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.functions import unix_millis
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

GAP = 20_000  # milliseconds
ROWS = "k STRING, first BIGINT, last BIGINT, n BIGINT, total BIGINT"
STATE = "first BIGINT, last BIGINT, n BIGINT, total BIGINT"

Session = tuple[int, int, int, int]


def split(rows: pd.DataFrame, open_session: Session | None) -> tuple[list[Session], Session | None]:
    """Return the sessions that these rows end, and the one that they leave open."""
    ended: list[Session] = []
    for ms, v in rows.sort_values(["ms", "id"])[["ms", "v"]].itertuples(index=False):
        if open_session is not None and ms - open_session[1] > GAP:
            ended.append(open_session)
            open_session = None
        first, _, n, total = open_session or (ms, ms, 0, 0)
        open_session = (int(first), int(ms), int(n + 1), int(total + v))
    return ended, open_session


def follow(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        ended: list[Session] = [state.get]
        state.remove()
    else:
        ended, now_open = split(pd.concat(frames), state.get if state.exists else None)
        assert now_open is not None
        state.update(now_open)
        state.setTimeoutTimestamp(now_open[1] + GAP)
    yield pd.DataFrame([(*key, *session) for session in ended], columns=["k", "first", "last", "n", "total"])


def sessions(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    rows = inputs["events"].withColumn("ms", unix_millis("time"))
    timeout = GroupStateTimeout.EventTimeTimeout
    return rows.groupBy("k").applyInPandasWithState(follow, ROWS, STATE, "append", timeout)


def batch_sessions(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    """The same for a batch, where Spark has no applyInPandasWithState."""

    def of_key(key: tuple[str], rows: pd.DataFrame) -> pd.DataFrame:
        ended, last = split(rows, None)
        found = [(*key, *session) for session in (*ended, last) if session is not None]
        return pd.DataFrame(found, columns=["k", "first", "last", "n", "total"])

    return inputs["events"].withColumn("ms", unix_millis("time")).groupBy("k").applyInPandas(of_key, ROWS)
