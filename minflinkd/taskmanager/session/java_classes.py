"""The Java classes of our own (`java/`), compiled when a session starts, by the compiler that Spark itself brings.

Spark has it for the code that it generates: a Java runtime without a compiler of its own will do.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

_SOURCES = Path(__file__).parent / "java"
PACKAGE = "org.minflinkd"


def compile_classes(jvm: Any, directory: Path) -> None:
    """Into a directory of the classpath of this JVM and of executors, before a SparkContext asks for them."""
    for source in sorted(_SOURCES.glob("*.java")):
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(source.read_text("utf-8"))
        for name, code in compiler.getBytecodes().items():
            file = directory / f"{name.replace('.', os.sep)}.class"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(code)
