"""Compiles our own Java classes (`java/`) when a session starts, with the compiler that Spark brings.

Spark has that compiler for the code that it generates, so a Java runtime without a compiler is enough.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from minflinkd.taskmanager.child.class_archive import SOURCES

PACKAGE = "org.minflinkd"


def compile_classes(jvm: Any, directory: Path) -> None:
    """Compile into a directory on the class path of this JVM and of executors, before a SparkContext needs them."""
    for source in sorted(SOURCES.glob("*.java")):
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(source.read_text("utf-8"))
        for name, code in compiler.getBytecodes().items():
            file = directory / f"{name.replace('.', os.sep)}.class"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(code)
