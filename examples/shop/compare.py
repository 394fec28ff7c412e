"""What the shop's sinks must hold, computed in plain Python, and what they hold, read without Spark.

How often a row is there counts, but for alerts, which may come twice after a kill.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

HALF_AN_HOUR = timedelta(minutes=30)

Event = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """Of all sinks, each with how often it is there.

    `per_minute`: minute, campaign, clicks. `attributed`: order, amount, time, day, click, campaign. `alerts`: order,
    user, amount, time.
    """

    per_minute: Counter[tuple[datetime, str, int]]
    attributed: Counter[tuple[int, int, datetime, date, int, str]]
    alerts: Counter[tuple[int, str, int, datetime]]


def wanted(clicks: Iterable[Event], purchases: Iterable[Event], limit: int) -> Rows:
    """Compute the rows. A click may be among the events several times."""
    unique = {click["click_id"]: click for click in clicks}.values()
    orders = list(purchases)
    minutes = Counter((_time(click).replace(second=0, microsecond=0), _campaign(click["url"])) for click in unique)
    by_user: defaultdict[str, list[Event]] = defaultdict(list)
    for click in unique:
        by_user[click["user"]].append(click)
    attributed = Counter(
        (
            order["order_id"],
            order["amount"],
            _time(order),
            _time(order).date(),
            click["click_id"],
            _campaign(click["url"]),
        )
        for order in orders
        for click in by_user[order["user"]]
        if timedelta(0) <= _time(order) - _time(click) <= HALF_AN_HOUR
    )
    alerts = Counter(_alert(order) for order in orders if order["amount"] >= limit)
    return Rows(Counter((*key, count) for key, count in minutes.items()), attributed, alerts)


def in_postgresql(address: str) -> Counter[tuple[datetime, str, int]]:
    """Read the counts. `address`: as libpq has it."""
    import psycopg

    with psycopg.connect(address, options="-c TimeZone=UTC") as connection:
        rows = connection.execute("SELECT minute, campaign, clicks FROM clicks_per_minute").fetchall()
    return Counter((_utc(minute), campaign, clicks) for minute, campaign, clicks in rows)


def in_iceberg(catalog: str, warehouse: str) -> Counter[tuple[int, int, datetime, date, int, str]]:
    from pyiceberg.catalog import load_catalog

    table = load_catalog("shop", type="sql", uri=catalog, warehouse=warehouse).load_table("shop.attributed")
    rows = table.scan().to_arrow().to_pylist()
    return Counter(
        (row["order_id"], row["amount"], _utc(row["time"]), row["day"], row["click_id"], row["campaign"])
        for row in rows
    )


def in_alerts(messages: Iterable[str]) -> Counter[tuple[int, str, int, datetime]]:
    return Counter(_alert(json.loads(message)) for message in messages)


def _alert(order: Event) -> tuple[int, str, int, datetime]:
    return order["order_id"], order["user"], order["amount"], _time(order)


def differences(found: Rows, right: Rows) -> list[str]:
    """Say which rows are missing or too many, a line for each sink that is wrong."""
    compared: dict[str, tuple[Counter[Any], Counter[Any]]] = {
        "PostgreSQL": (found.per_minute, right.per_minute),
        "Iceberg": (found.attributed, right.attributed),
        "alerts": (Counter({*found.alerts}), right.alerts),
    }
    return [
        f"{name}: {(rows - has).total()} rows are missing, {(has - rows).total()} are too many"
        for name, (has, rows) in compared.items()
        if has != rows
    ]


def _time(event: Event) -> datetime:
    return datetime.fromisoformat(event["time"])


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def _campaign(url: str) -> str:
    return parse_qs(urlparse(url).query).get("utm_campaign", ["none"])[0]
