"""Each Java class is looked up once by its name; tested without a JVM."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j import protocol
from py4j.java_gateway import JavaClass, JavaPackage, JVMView
from py4j.protocol import Py4JError

from minflinkd.taskmanager.session.spark.java_names import KnownNames

CLASSES = {"org.apache.spark.SparkConf", "org.apache.spark.sql.functions"}


class Gateway:
    """Answers lookups as py4j's Java side does. `asked` lists the names in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.classes = set(CLASSES)
        self.gateway_property = SimpleNamespace(pool=None)
        self.converters = None

    def send_command(self, command: str) -> str:
        name = command.split("\n")[2].removeprefix(protocol.REFL_GET_UNKNOWN_SUB_COMMAND_NAME.strip())
        self.asked.append(name)
        if name in self.classes:
            return protocol.SUCCESS_CLASS + name
        return protocol.SUCCESS_PACKAGE if " " not in name else protocol.ERROR


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
def jvm(gateway: Gateway) -> Any:
    return KnownNames(JVMView(gateway, "default", id="rj"))


def test_a_class_is_asked_for_once(gateway: Gateway, jvm: Any) -> None:
    """Both the path and the whole name of a class are looked up only once."""
    first = jvm.org.apache.spark.sql.functions
    assert (first._fqn, len(gateway.asked)) == ("org.apache.spark.sql.functions", 5)
    assert jvm.org.apache.spark.sql.functions is first
    assert isinstance(jvm.org.apache.spark.SparkConf, JavaClass)
    assert len(gateway.asked) == 6
    assert getattr(jvm, "org.apache.spark.SparkConf") is getattr(jvm, "org.apache.spark.SparkConf")
    assert len(gateway.asked) == 7


def test_a_class_that_comes_later_is_found_then(gateway: Gateway, jvm: Any) -> None:
    """py4j takes a missing class for a package. An archive may be added while the session runs."""
    assert isinstance(jvm.org.postgresql.Driver, JavaPackage)
    gateway.classes.add("org.postgresql.Driver")
    assert isinstance(jvm.org.postgresql.Driver, JavaClass)


def test_what_java_does_not_know_is_an_error_each_time(gateway: Gateway, jvm: Any) -> None:
    """py4j does the same."""
    for _ in range(2):
        with pytest.raises(Py4JError):
            getattr(jvm.org, "no such")
    assert gateway.asked.count("org.no such") == 2
