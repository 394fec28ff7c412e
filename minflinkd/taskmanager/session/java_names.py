"""Names of Java classes and packages, of which py4j asks Java anew at each use.

`jvm.org.apache.spark.sql.functions` takes five questions. For each of the first four, Java looks for a class of this
name in every archive of its class path, in vain. This took a quarter of the processor time of a busy session; here each
name is asked for once.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaPackage, JVMView
from pyspark import SparkContext


def remember_names() -> None:
    """For everything that names a class from now on, pyspark too. To be called when pyspark has done its imports."""
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.jvm = SparkContext._jvm = KnownNames(gateway.jvm)


class KnownNames(JVMView):  # type: ignore[misc]
    """What Java has said is an attribute from then on. A name that it does not know is asked for again."""

    def __init__(self, view: JVMView) -> None:
        super().__init__(view._gateway_client, view._jvm_name, id=view._id)

    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


class _KnownPackage(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


def _remembered(parent: KnownNames | _KnownPackage, name: str, found: Any) -> Any:
    if isinstance(found, JavaPackage):
        if not name[:1].islower():  # a class that is not there yet: py4j takes any unknown name for a package
            return found
        found = _KnownPackage(found._fqn, found._gateway_client, found._jvm_id)
    setattr(parent, name, found)
    return found
