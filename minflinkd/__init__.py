"""minflinkd: runs long-lived PySpark pipelines the way Apache Flink runs its jobs."""

__version__ = "0.1.0"
