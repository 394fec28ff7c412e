"""Starts the session's JVM so that no other user of the machine reads its settings or calls into it (E40).

PySpark passes each setting as `--conf name=value`, and every user can read a command line in /proc. So the settings go
into a file that only this user can read. And PySpark's callback server, through which the JVM calls Python, asks for no
token: whoever connects to its port runs code here. So it gets the token that the JVM's side has.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
_SPECIAL = re.compile(r"[\\\n\r\t\f]")


def start_jvm(settings: Mapping[str, str], directory: Path) -> None:
    """Start the JVM of this process with these Spark settings. Raises what pyspark raises."""
    file = directory / "spark.properties"
    file.unlink(missing_ok=True)
    private = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with open(private, "w", encoding="utf-8") as out:
            out.write(properties(settings))
        os.environ[_ARGUMENTS] = f"--load-spark-defaults --properties-file {shlex.quote(str(file))} pyspark-shell"
        SparkContext._ensure_initialized()
    finally:  # also if the disk is full
        os.environ.pop(_ARGUMENTS, None)
        file.unlink()


def properties(settings: Mapping[str, str]) -> str:
    """Return the content of a Java properties file. Pure."""
    return "".join(f"{_key(name)}={_value(value)}\n" for name, value in settings.items())


def _key(name: str) -> str:
    return re.sub(r"[ :=#!]", r"\\\g<0>", _SPECIAL.sub(lambda found: _ESCAPED[found[0]], name))


def _value(value: str) -> str:
    escaped = _SPECIAL.sub(lambda found: _ESCAPED[found[0]], value)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def start_callbacks(gateway: Any) -> None:
    """Start the server through which the JVM calls Python. It lets in only those who know the gateway's token."""
    token = gateway.java_parameters.auth_token
    assert token
    gateway.callback_server_parameters.auth_token = token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    # That call tells the JVM our port. On the way, py4j forgets the token in the JVM, so it is set again.
    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
    field = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
    field.setAccessible(True)
    field.set(client, token)
