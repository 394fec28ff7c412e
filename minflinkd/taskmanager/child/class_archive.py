"""Where the JVMs of sessions find classes that an earlier one has loaded and verified (Java's class data sharing).

    <directory>/<key>/classes.jar               our own Java classes, as a session has compiled them
    <directory>/<key>/session-<checksum>.jsa    all classes that a warm session loads, as Java maps them into memory

A session that finds both starts with 40 % less processor time (docs/benchmarks.md). Java refuses an archive that was
made by another Java or for another class path, and then loads the classes as usual. The key keeps such archives apart:
a digest of the Java, of Spark's jars, of our Java sources, and of the class path that the configuration adds. A damaged
archive would crash Java, so its checksum is compared before each use: 190 MB take 0.03 s.

The directory belongs to the user of the sessions: whoever can write there can run code in them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog
import xxhash

from minflinkd.runtime.system_user import system_user
from minflinkd.taskmanager.child.java import NoJava, find_java
from minflinkd.taskmanager.child.protocol import SessionConfig

log = structlog.get_logger(__name__)

UNUSED = 30 * 24 * 3600.0  # seconds after which an archive that no session has used is deleted
SOURCES = Path(__file__).parents[1] / "session" / "spark" / "java"

_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")  # an archive that does not fit is no reason for a warning


@dataclass(frozen=True)
class ClassArchive:
    """The archive for sessions of one kind, whether or not it is there yet."""

    directory: Path

    @property
    def jar(self) -> Path:
        return self.directory / "classes.jar"

    def find(self) -> Path | None:
        """Return the file of the archive, or None if there is none."""
        return next(iter(sorted(self.directory.glob("session-*.jsa"))), None)

    def options_to_make(self, new: Path) -> tuple[str, ...]:
        """Return what makes a JVM write the archive to `new` when it exits."""
        return (f"-XX:ArchiveClassesAtExit={new}", *_QUIET)

    def options(self) -> tuple[str, ...]:
        """Return what makes a JVM use the archive, if it is there and whole. A damaged one is deleted."""
        try:
            if (found := self.find()) is None:
                return ()
            if found.name != _name(found):
                log.warning("a damaged class archive is deleted", file=str(found))
                found.unlink(missing_ok=True)
                return ()
            os.utime(found)  # it is in use
        except OSError as error:  # a session starts without it, only more slowly
            log.warning("the class archive is not used", directory=str(self.directory), error=str(error))
            return ()
        return (f"-XX:SharedArchiveFile={found}", *_QUIET)

    def keep(self, classes: Path) -> None:
        """Pack the compiled classes below this directory, for the next sessions, if that is possible.

        A jar that is there stays: archives are valid for exactly that file.
        """
        try:
            self._pack(classes)
        except OSError as error:  # the disk is full: no reason for a session not to start
            log.warning("no class archive can be made", directory=str(self.directory), error=str(error))

    def _pack(self, classes: Path) -> None:
        """Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        packed = self.directory / f".classes-{os.getpid()}.jar"
        try:
            with zipfile.ZipFile(packed, "w") as jar:
                for path in sorted(classes.rglob("*.class")):
                    jar.write(path, path.relative_to(classes))
            with contextlib.suppress(FileExistsError):
                os.link(packed, self.jar)
        finally:
            packed.unlink(missing_ok=True)

    def new(self) -> Path:
        """Return where Java writes an archive, which `put` makes the one to use."""
        return self.directory / f".session-{os.getpid()}.jsa"

    def put(self, new: Path) -> Path:
        """Make a whole archive the one to use, and return its file. Raises OSError."""
        with new.open("rb") as written:
            os.fsync(written.fileno())
        return new.replace(self.directory / _name(new))

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Whether nobody else makes this archive until the block ends. Removes what an interrupted maker has left."""
        with (self.directory / "lock").open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            for left in self.directory.glob(".session-*.jsa"):
                left.unlink(missing_ok=True)
            yield True

    def remove_unused(self, now: float) -> None:
        """Delete archives of other Javas and Sparks that no session has used for long. `now`: seconds since 1970."""
        for other in self.directory.parent.iterdir():
            found = ClassArchive(other).find()
            if other != self.directory and found is not None and found.stat().st_mtime < now - UNUSED:
                shutil.rmtree(other, ignore_errors=True)


def _name(file: Path) -> str:
    """Return the name of an archive with this content."""
    digest = xxhash.xxh3_128()
    with file.open("rb") as content:
        while piece := content.read(1 << 20):
            digest.update(piece)
    return f"session-{digest.hexdigest()}.jsa"


def class_archive(config: SessionConfig, environ: Mapping[str, str]) -> ClassArchive | None:
    """Return the archive for sessions of this configuration; None if they use none.

    On a cluster, executors read our classes from a directory that they share, and they are other JVMs.
    """
    if not config.class_archives or config.on_cluster:
        return None
    directory = Path(config.class_archives)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_private(directory, system_user(config.run_as).uid if config.run_as else os.geteuid()):
            log.warning("no class archive is used, since others can write to its directory", directory=str(directory))
            return None
        return ClassArchive(directory / _key(config, environ))
    except (NoJava, OSError) as error:
        log.warning("no class archive is used", reason=str(error))
        return None


def _is_private(directory: Path, owner: int) -> bool:
    found = directory.stat()
    return found.st_uid == owner and not found.st_mode & 0o022


def _key(config: SessionConfig, environ: Mapping[str, str]) -> str:
    """Return a digest of what an archive depends on. Raises NoJava, OSError."""
    digest = hashlib.blake2b(digest_size=12)

    def add(text: str) -> None:
        digest.update(text.encode() + b"\0")

    java = find_java(environ).resolve()
    release = java.parents[1] / "release"
    add(str(java))
    add(release.read_text("utf-8") if release.exists() else str(java.stat().st_mtime_ns))
    for jar in sorted(_jars(environ).iterdir()):
        about = jar.stat()
        add(f"{jar} {about.st_size} {about.st_mtime_ns}")
    for source in sorted(SOURCES.glob("*.java")):
        add(source.read_text("utf-8"))
    add(config.conf.get("spark.driver.extraClassPath", ""))
    return digest.hexdigest()


def _jars(environ: Mapping[str, str]) -> Path:
    if home := environ.get("SPARK_HOME"):
        return Path(home) / "jars"
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise FileNotFoundError("pyspark is not installed")
    return Path(found.origin).parent / "jars"
