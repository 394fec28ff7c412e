"""The example with Kafka, Iceberg, PostgreSQL and real-time mode, as `make shop` plays it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from examples.shop.play import Shop
from tests.servers.apache_kafka import ApacheKafka
from tests.servers.postgres import Postgres

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.skipif(importlib.util.find_spec("psycopg") is None, reason="psycopg is not installed: make setup")
async def test_every_sink_of_the_shop_holds_its_rows_whatever_is_killed(tmp_path: Path) -> None:
    """Iceberg, PostgreSQL and the topic of alerts have what plain Python computes (K3, K4, T3, C40)."""
    for server in (ApacheKafka, Postgres):
        if reason := server.missing():
            pytest.skip(reason)
    shop = Shop(tmp_path, kills=4, seconds=30.0, seed=2)
    assert await shop.play() == []
    assert shop.killed.total() == 4
