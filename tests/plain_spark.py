"""The environment of processes in which plain Spark runs a query as a batch, to compare it with what a job wrote."""

from __future__ import annotations

import os

# A batch of a few seconds never earns back the time of Java's C2 compiler, which slows the jobs that run beside it.
_JAVA = "-XX:TieredStopAtLevel=1"
_VARIABLE = "JDK_JAVA_OPTIONS"


def environ() -> dict[str, str]:
    """Return this process's environment. What it has set for Java takes precedence."""
    return os.environ | {_VARIABLE: " ".join(filter(None, (_JAVA, os.environ.get(_VARIABLE))))}
