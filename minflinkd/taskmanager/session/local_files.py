"""Hadoop's local file systems without a process for each step (java/LocalFiles.java says when Hadoop starts one).

That were four processes for each file that Spark writes and renames, and a micro-batch writes one for each log and for
each partition of its state.
"""

from __future__ import annotations

from minflinkd.taskmanager.session.java_classes import PACKAGE

_CLASS = f"{PACKAGE}.LocalFiles"

# Logs and changelogs are written through FileContext. No .crc file beside each: half the file operations.
CONTEXT = {"spark.hadoop.fs.AbstractFileSystem.file.impl": f"{_CLASS}$Context"}

# All other files. RocksDB's uploads need a LocalFileSystem here, and fail in the background with a raw one.
CHECKED = {"spark.hadoop.fs.file.impl": f"{_CLASS}$Checked"}

WITH_CLASSES = frozenset(CONTEXT | CHECKED)  # settings with which nothing can be opened before these are compiled

# No .crc file beside each. Only for one writer's file system, which therefore is not the cached one.
RAW = {"fs.file.impl": f"{_CLASS}$Raw", "fs.file.impl.disable.cache": "true"}
