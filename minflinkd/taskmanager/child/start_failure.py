"""Why a session did not start, in one line that names what to change (R5). Pure, except for reading a file.

pyspark itself says only that the JVM ended. The cause is in the session's log, printed by the JVM's launcher.
"""

from __future__ import annotations

import re
from pathlib import Path

from minflinkd.runtime.units import MemorySize
from minflinkd.taskmanager.child.protocol import SessionConfig

READ = 65536  # bytes read from the end of the log
LONGEST = 600  # characters

_NO_JAVA = re.compile(
    r"JAVA_HOME is not set|/java: No such file|java: (command )?not found|env: \W*bash\W*: No such file"
)
_NO_MEMORY = re.compile(
    r"^Error occurred during initialization of VM\n(?P<why>.*(heap|memory|space|allocate).*)$"
    r"|(?P<insufficient>insufficient memory) for the Java Runtime Environment",
    re.MULTILINE,
)
_OLD_JAVA = re.compile(r"UnsupportedClassVersionError")
_ERROR = re.compile(
    r"^(?:Exception in thread \"\w+\" |Caused by: )?((?:[\w.]*(?:Error|Exception)|Unrecognized)\b.+)$", re.MULTILINE
)


def start_failure(reason: str, printed: str, config: SessionConfig) -> str:
    """Return why the session did not start.

    `reason` is what the supervisor knows. `printed` is what the session child and its JVM have printed since the start.
    """
    if _NO_JAVA.search(printed):
        return "no Java was found: it must be on the PATH, or JAVA_HOME must name it"
    if found := _NO_MEMORY.search(printed):
        return f"the JVM does not start with {_heap(config)}: {found['why'] or found['insufficient']}"
    if _OLD_JAVA.search(printed):
        return "this Java is too old for Spark: Java 17 must be first on the PATH, or JAVA_HOME must name it"
    if "JAVA_GATEWAY_EXITED" in reason or "child ended" in reason:
        errors = _ERROR.findall(printed)
        if errors:
            return _one_line(errors[-1])
    return _one_line(reason)


def printed_since(log: Path, offset: int) -> str:
    """Return what the log contains after `offset`, or the end of that."""
    try:
        with log.open("rb") as file:
            file.seek(max(offset, log.stat().st_size - READ))
            return file.read(READ).decode(errors="replace")
    except OSError:
        return ""


def _heap(config: SessionConfig) -> str:
    """Return the option that determines the heap, with its value."""
    if memory := config.conf.get("spark.driver.memory"):
        return f"spark.driver.memory {memory} (taskmanager.spark.conf)"
    return f"taskmanager.memory.heap.size {MemorySize(config.heap_bytes)}"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 4] + " ..."
