"""Remembers the names of Java classes and packages, which py4j otherwise looks up in Java at each use.

`jvm.org.apache.spark.sql.functions` takes five lookups. For each of the first four, Java searches every archive of its
class path for a class of that name, in vain. This took a quarter of the processor time of a busy session. Here each
name is looked up once.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaPackage, JVMView
from pyspark import SparkContext


def remember_names() -> None:
    """Remember names for everything that uses the JVM, pyspark included. Call it after pyspark's own Java imports."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.jvm = SparkContext._jvm = KnownNames(gateway.jvm)


class KnownNames(JVMView):  # type: ignore[misc]
    """A JVM view that stores what Java has found as attributes. A name that Java does not know is looked up again."""

    def __init__(self, view: JVMView) -> None:
        super().__init__(view._gateway_client, view._jvm_name, id=view._id)

    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


class _KnownPackage(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


def _remembered(parent: KnownNames | _KnownPackage, name: str, found: Any) -> Any:
    if isinstance(found, JavaPackage):
        if not name[:1].islower():  # a class that is not there (yet): py4j takes any unknown name for a package
            return found
        found = _KnownPackage(found._fqn, found._gateway_client, found._jvm_id)
    setattr(parent, name, found)
    return found
