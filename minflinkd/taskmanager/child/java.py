"""Which Java Spark would start here, and whether Spark can use it.

A session finds it as Spark's own launcher does: `$JAVA_HOME/bin/java` if JAVA_HOME is set, otherwise `java` on the
PATH. It is checked before a daemon or a TaskManager reports that it is ready. Otherwise the first job that waits for a
session would notice the problem, much later.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minflinkd.runtime.errors import MinflinkError

OLDEST = 17  # the oldest that Spark 4 runs on
TIMEOUT = 60.0  # seconds; long, since a booting machine starts dozens of processes

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # 1.8.0_392, 11.0.2, 17-ea, 21
_INSTALL = f"install Java {OLDEST} or later (Debian, Ubuntu: apt-get install openjdk-{OLDEST}-jre-headless)"


class NoJava(MinflinkError):
    """There is no Java, or it does not run."""

    code = "no-java"


class JavaTooOld(MinflinkError):
    code = "java-too-old"


@dataclass(frozen=True)
class Java:
    program: Path
    version: int | None  # the major version; None: unknown

    def __str__(self) -> str:
        return f"{self.program} (Java {self.version or 'of an unknown version'})"


def check_java(environ: Mapping[str, str]) -> Java:
    """Find and check Java. Blocks while a JVM starts to print its version, about 0.1 s. Raises NoJava, JavaTooOld."""
    program = find_java(environ)
    try:
        asked = subprocess.run(
            [program, "-version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoJava(f"{program} does not run: {error}", hint=_remedy(environ)) from error
    if asked.returncode != 0:
        lines = (asked.stderr + asked.stdout).strip().splitlines()
        why = lines[-1].strip()[:200] if lines else f"exit code {asked.returncode}"
        raise NoJava(f"{program} does not run: {why}", hint=_remedy(environ))
    return suitable(program, asked.stderr + asked.stdout, environ)


def find_java(environ: Mapping[str, str]) -> Path:
    """Return the path of the Java that Spark would start. Raises NoJava."""
    if home := environ.get("JAVA_HOME"):
        program = Path(home) / "bin" / "java"
        if os.access(program, os.X_OK) and program.is_file():
            return program
        raise NoJava(f"JAVA_HOME is {home}, where there is no bin/java", hint=_remedy(environ))
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        return Path(found)
    raise NoJava(
        "no Java was found: java is not on the PATH, and JAVA_HOME is not set",
        hint=f"{_INSTALL}, or set JAVA_HOME to the directory of one",
    )


def suitable(program: Path, printed: str, environ: Mapping[str, str]) -> Java:
    """Check what `java -version` printed. If it shows no version, Spark decides. Raises JavaTooOld."""
    found = _VERSION.search(printed)
    java = Java(program, int(found[1]) if found else None)
    if java.version is not None and java.version < OLDEST:
        of = " (of JAVA_HOME)" if environ.get("JAVA_HOME") else ""
        raise JavaTooOld(
            f"{program}{of} is Java {java.version}, and Spark needs Java {OLDEST} or later", hint=_remedy(environ)
        )
    return java


def _remedy(environ: Mapping[str, str]) -> str:
    if not environ.get("JAVA_HOME"):
        return f"{_INSTALL}, and put it first on the PATH, or set JAVA_HOME to it"
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    other = f"unset it, so that {on_path} is used" if on_path else f"{_INSTALL} and unset it"
    return f"set JAVA_HOME to the directory of a Java {OLDEST} or later, or {other}"
