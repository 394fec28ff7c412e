"""Keeps the number and the sum of each customer's orders, from JSON files in a table of PostgreSQL.

spark-submit --jars "$JARS" upsert.py /data/orders "postgresql://127.0.0.1:5432/shop?user=shop" /data/checkpoints/totals
"""

import sys

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql.functions import count, sum

source, database, checkpoints = sys.argv[1:]


def upsert(batch, epoch):
    rows = batch.write.format("jdbc").option("url", f"jdbc:{database}").option("driver", "org.postgresql.Driver")
    rows.option("dbtable", "totals_staged").mode("overwrite").save()
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO totals SELECT * FROM totals_staged "
            "ON CONFLICT (customer) DO UPDATE SET orders = EXCLUDED.orders, amount = EXCLUDED.amount"
        )


with psycopg.connect(database) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, orders BIGINT, amount BIGINT)")
spark = SparkSession.builder.appName("totals").getOrCreate()
orders = spark.readStream.schema("customer STRING, amount BIGINT").json(source)
totals = orders.groupBy("customer").agg(count("*").alias("orders"), sum("amount").alias("amount"))
query = totals.writeStream.outputMode("update").option("checkpointLocation", checkpoints).foreachBatch(upsert).start()
query.awaitTermination()
