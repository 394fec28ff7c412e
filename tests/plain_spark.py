"""The environment of processes in which plain Spark runs a query as a batch, to be compared with what a job wrote."""

from __future__ import annotations

import os

# A batch of some seconds never pays the compilation of Java's C2 back, and takes it from the jobs that run beside it.
_JAVA = "-XX:TieredStopAtLevel=1"
_VARIABLE = "JDK_JAVA_OPTIONS"


def environ() -> dict[str, str]:
    """That of this process; what it has set for Java counts more."""
    return os.environ | {_VARIABLE: " ".join(filter(None, (_JAVA, os.environ.get(_VARIABLE))))}
