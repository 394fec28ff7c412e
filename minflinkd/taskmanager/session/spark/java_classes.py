"""Compiles our own Java classes (`java/`) when a session starts, with the compiler that Spark brings.

Those in folders below it need a connector that a session may not have. They are compiled when a job needs them.

Spark has that compiler for the code that it generates, so a Java runtime without a compiler is enough.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from minflinkd.taskmanager.child.class_archive import SOURCES

PACKAGE = "org.minflinkd"


def compile_classes(jvm: Any, directory: Path) -> None:
    """Compile into a directory on the class path of this JVM and of executors, before a SparkContext needs them.

    Each file is compiled by itself. It may use what comes before it by name.
    """
    for source in sorted(SOURCES.glob("*.java")):
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(source.read_text("utf-8"))
        for name, code in compiler.getBytecodes().items():
            file = directory / f"{name.replace('.', os.sep)}.class"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(code)


_constructors: dict[tuple[int, str], Any] = {}  # by JVM and source: py4j knows methods by the name of their class


def make(session: SparkSession, source: str, *arguments: object) -> Any:
    """Make an object of a class that is compiled when it is needed first. `source`: its file in `java/`.

    Its only constructor is called. What it uses may be in Spark, in `spark.jars`, or in jars among a job's artifacts.
    Raises Py4JJavaError.
    """
    gateway: Any = session.sparkContext._gateway
    key = (id(gateway), source)
    if key not in _constructors:
        compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(session._jsparkSession.sharedState().jarClassLoader())
        compiler.cook((SOURCES / source).read_text("utf-8"))
        name = f"{PACKAGE}.{Path(source).stem}"
        _constructors[key] = compiler.getClassLoader().loadClass(name).getConstructors()[0]
    given = gateway.new_array(gateway.jvm.java.lang.Object, len(arguments))
    for position, argument in enumerate(arguments):
        given[position] = argument
    return _constructors[key].newInstance(given)
