"""The pipeline as a plain PySpark script, before it was ported to clicks.yaml and clicks.py.

    spark-submit examples/clicks/clicks_spark.py INPUT OUTPUT

Clicks are delivered more than once. Each counts once, for the campaign in its URL. There are two outputs: clicks by
minute and campaign, and the clicks that were followed by a purchase of the same user within half an hour.
"""

import sys
from collections.abc import Iterator
from urllib.parse import parse_qs, urlparse

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.pandas.functions import pandas_udf

CLICKS = "click_id BIGINT, user STRING, url STRING, time TIMESTAMP"
PURCHASES = "order_id BIGINT, user STRING, amount BIGINT, time TIMESTAMP"


def campaign_of(urls: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for batch in urls:
        yield batch.map(lambda url: parse_qs(urlparse(url).query).get("utm_campaign", ["none"])[0])


def unique(clicks: DataFrame) -> DataFrame:
    campaign = pandas_udf(campaign_of, "string")
    return clicks.dropDuplicates(["click_id", "time"]).withColumn("campaign", campaign("url"))


def per_minute(clicks: DataFrame) -> DataFrame:
    counted = clicks.groupBy(expr("window(time, '1 minute')"), "campaign").count()
    return counted.selectExpr("window.start AS minute", "campaign", "count AS clicks")


def attributed(clicks: DataFrame, purchases: DataFrame) -> DataFrame:
    within = "p.user = c.user AND p.time >= c.time AND p.time <= c.time + INTERVAL 30 MINUTES"
    joined = clicks.alias("c").join(purchases.alias("p"), expr(within))
    return joined.selectExpr("p.order_id", "p.amount", "p.time", "c.click_id", "c.campaign")


def main(source: str, target: str) -> None:
    builder = SparkSession.builder.appName("clicks").config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    stream = spark.readStream.option("maxFilesPerTrigger", 2)
    clicks = unique(stream.schema(CLICKS).json(f"{source}/clicks").withWatermark("time", "10 minutes"))
    purchases = stream.schema(PURCHASES).json(f"{source}/purchases").withWatermark("time", "10 minutes")
    for name, rows in (("per_minute", per_minute(clicks)), ("attributed", attributed(clicks, purchases))):
        writer = rows.writeStream.format("parquet").option("path", f"{target}/{name}")
        writer.option("checkpointLocation", f"{target}/_checkpoints/{name}").trigger(availableNow=True).start()
    for query in spark.streams.active:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
