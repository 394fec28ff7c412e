"""Counts the views of each page by minute, from Kafka into Parquet files.

spark-submit --jars "$JARS" kafka.py 127.0.0.1:9092 /data/views /data/checkpoints/views
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import window

broker, output, checkpoints = sys.argv[1:]
spark = SparkSession.builder.appName("views").getOrCreate()
messages = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", broker)
    .option("subscribe", "views")
    .option("startingOffsets", "earliest")
    .load()
)
views = messages.selectExpr("from_json(CAST(value AS STRING), 'page STRING, time TIMESTAMP') AS view").select("view.*")
counts = (
    views.withWatermark("time", "1 minute")
    .groupBy(window("time", "1 minute"), "page")
    .count()
    .selectExpr("window.start AS minute", "page", "count AS views")
)
query = (
    counts.writeStream.format("parquet")
    .option("path", output)
    .option("checkpointLocation", checkpoints)
    .trigger(processingTime="5 seconds")
    .start()
)
query.awaitTermination()
