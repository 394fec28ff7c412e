"""Hadoop's local file systems without a process for each step: Java classes that Spark's own compiler compiles.

Hadoop runs `chmod` and `readlink` for what Java can do by itself (java/LocalFiles.java says when): four processes for
each file that Spark writes and renames, and a micro-batch writes one for each log and each partition of its state.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).parent / "java" / "LocalFiles.java"
_CLASS = "org.minflinkd.LocalFiles"

# Logs and changelogs are written through FileContext. No .crc file beside each: half the file operations.
CONTEXT = {"spark.hadoop.fs.AbstractFileSystem.file.impl": f"{_CLASS}$Context"}

# All other files. RocksDB's uploads need a LocalFileSystem here, and fail in the background with a raw one.
CHECKED = {"spark.hadoop.fs.file.impl": f"{_CLASS}$Checked"}

# No .crc file beside each. Only for one writer's file system, which therefore is not the cached one.
RAW = {"fs.file.impl": f"{_CLASS}$Raw", "fs.file.impl.disable.cache": "true"}


def compile_classes(jvm: Any, directory: Path) -> None:
    """Into a directory of the classpath of this JVM and of executors, before a SparkContext asks for them.

    By the compiler that Spark brings for its generated code: a Java runtime without one of its own will do.
    """
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(_SOURCE.read_text("utf-8"))
    for name, code in compiler.getBytecodes().items():
        file = directory / f"{name.replace('.', os.sep)}.class"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(code)
