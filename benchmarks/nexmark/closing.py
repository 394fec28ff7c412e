"""Auctions and what becomes of them: q4 and q9. A job has this file as its artifact, and plain PySpark imports it.

Bids are kept with their auction in `transformWithStateInPandas`. The rows of one call may come in any order, and a bid
may come before its auction, so those that wait for it are kept, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody has it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

_AUCTION = "itemName STRING, category BIGINT, seller BIGINT, opens TIMESTAMP, expires TIMESTAMP"
_BID = "price BIGINT, bidder BIGINT, at TIMESTAMP"
_WINNING = (
    "id BIGINT, itemName STRING, category BIGINT, seller BIGINT, bidder BIGINT, price BIGINT, bid_time TIMESTAMP, "
    "before BIGINT"
)


def winning_bids(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    """q9: a row for each auction, again whenever there is a better bid."""
    return _winning(inputs).drop("before")


def closing_prices(inputs: dict[str, DataFrame], params: dict[str, Any]) -> DataFrame:
    """q4: the average of the highest bids of each category, again whenever it changes."""
    keys = _winning(inputs).groupBy("category")
    return keys.transformWithStateInPandas(
        _Averaging(), outputStructType="category BIGINT, price DOUBLE", outputMode="append", timeMode="none"
    )


def _winning(inputs: dict[str, DataFrame]) -> DataFrame:
    """`before`: the price of the bid that was the best until then."""
    auction = inputs["auction"].select(
        "id", "itemName", "category", "seller", F.col("dateTime").alias("at"), "expires", *_none("price", "bidder")
    )
    bid = inputs["bid"].select(
        F.col("auction").alias("id"),
        F.lit(None).cast("string").alias("itemName"),
        *_none("category", "seller"),
        F.col("dateTime").alias("at"),
        F.lit(None).cast("timestamp").alias("expires"),
        "price",
        "bidder",
    )
    keys = auction.unionByName(bid).groupBy("id")
    return keys.transformWithStateInPandas(_Winning(), outputStructType=_WINNING, outputMode="append", timeMode="none")


def _none(*names: str) -> list[Any]:
    return [F.lit(None).cast("bigint").alias(name) for name in names]


class _Winning(StatefulProcessor):
    """The state of one auction: itself, its best bid, and the bids that came before it."""

    def init(self, handle: Any) -> None:
        self._auction = handle.getValueState("auction", _AUCTION)
        self._best = handle.getValueState("best", _BID)
        self._early = handle.getListState("early", _BID)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        bids, auction = list[tuple[Any, ...]](), self._auction.get()
        for frame in rows:
            for row in frame.itertuples(index=False):
                if pd.isna(row.price):
                    # Beside bids, pandas has these as floats, of which Spark would make nulls.
                    auction = (row.itemName, int(row.category), int(row.seller), row.at, row.expires)
                    self._auction.update(auction)
                    bids += self._early.get()
                    self._early.clear()
                else:
                    bids.append((int(row.price), int(row.bidder), row.at))
        if auction is None:
            self._early.appendList(bids)
            return
        name, category, seller, opens, expires = auction
        before = self._best.get()
        valid = [bid for bid in bids if opens <= bid[2] <= expires]
        best = min(([] if before is None else [before]) + valid, key=_order, default=None)
        if best is None or (before is not None and tuple(best) == tuple(before)):
            return
        self._best.update(tuple(best))
        price, bidder, at = best
        found = (key[0], name, category, seller, bidder, price, at, None if before is None else before[0])
        yield pd.DataFrame([found], columns=[part.split()[0] for part in _WINNING.split(", ")])

    def close(self) -> None:
        pass


def _order(bid: Any) -> tuple[Any, ...]:
    price, bidder, at = bid
    return -price, at, bidder


class _Averaging(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self._sum = handle.getValueState("sum", "total BIGINT, number BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        total, number = self._sum.get() or (0, 0)
        for frame in rows:
            total += int(frame["price"].sum()) - int(frame["before"].fillna(0).sum())
            number += int(frame["before"].isna().sum())
        self._sum.update((total, number))
        yield pd.DataFrame({"category": [key[0]], "price": [total / number]})

    def close(self) -> None:
        pass
