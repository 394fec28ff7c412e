"""Sinks that append to tables of Delta Lake and Iceberg: files of data first, then one commit that names them.

`rows` is the two-phase sink, the same for both. `parquet_files` has Spark write the files of a micro-batch to the
TaskManager's disk. `delta` and `iceberg` put them into the table and commit them. `staged` decides what a commit still
has to publish.
"""
