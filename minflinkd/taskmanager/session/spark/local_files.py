"""Replaces Hadoop's local file systems, which fork processes (java/LocalFiles.java says for what).

Without this, Hadoop forks four processes for each file that Spark writes and renames. A micro-batch writes a file for
each log and for each partition of its state.
"""

from __future__ import annotations

from minflinkd.taskmanager.session.spark.java_classes import PACKAGE

_CLASS = f"{PACKAGE}.LocalFiles"

# For logs and changelogs, which are written through FileContext. It writes no .crc files: half the file operations.
CONTEXT = {"spark.hadoop.fs.AbstractFileSystem.file.impl": f"{_CLASS}$Context"}

# For all other files. RocksDB's uploads need a LocalFileSystem here: with a raw one they fail in the background.
CHECKED = {"spark.hadoop.fs.file.impl": f"{_CLASS}$Checked"}

WITH_CLASSES = frozenset(CONTEXT | CHECKED)  # set only after the classes are compiled: no file could be opened before

# Without .crc files. Only for the file system of one writer, which therefore must not be the cached one.
RAW = {"fs.file.impl": f"{_CLASS}$Raw", "fs.file.impl.disable.cache": "true"}
