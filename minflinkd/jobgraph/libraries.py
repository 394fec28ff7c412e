"""What a Spark session can hold in only one version: the native modules of a job's artifacts, and its jars' classes.

A *unit* names one of these: `native:acme_fast` for a top-level package of an archive with native code,
`java:com/acme/rules` for the classes below one directory of a jar. Two artifacts that share a unit, but differ in
content, cannot be in one session. The ResourceManager keeps their jobs apart (B31). Other Python code claims nothing.
"""

from __future__ import annotations

import errno
import hashlib
import lzma
import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import PurePosixPath

ARCHIVE_SUFFIXES = (".zip", ".whl", ".jar")
ARTIFACT_SUFFIXES = (".py", *ARCHIVE_SUFFIXES)  # what a running session can load
NATIVE_SUFFIXES = (".so", ".pyd", ".dylib")
CODE_SUFFIXES = (".py", ".pyc", *NATIVE_SUFFIXES)
JAVA_DEPTH = 3  # directories in a jar's unit: few enough to keep a session's report small
# A process can hold each of these only once: a job's module with such a name is never found.
PROTECTED_MODULES = frozenset(sys.stdlib_module_names) | {"pyspark", "minflinkd", "py4j"}
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError),
    *(ValueError, OverflowError),  # names and positions that make no sense
    *(NotImplementedError, RuntimeError),  # an unknown compression; a password
)
_DAMAGE_BY_NUMBER = (None, errno.EINVAL, errno.EILSEQ, errno.ENAMETOOLONG)  # None: of bz2
_MULTI_RELEASE = re.compile(r"META-INF/versions/\d+/")
_WHEEL_DATA = re.compile(r"[^/]+\.data/((purelib|platlib)/)?")


def units(artifact_name: str, member_names: Iterable[str]) -> tuple[str, ...]:
    """Return the units that an artifact claims, sorted. `member_names`: the files in an archive (ARCHIVE_SUFFIXES)."""
    if artifact_name.endswith(".jar"):
        return _of_jar(member_names)
    if artifact_name.endswith(ARCHIVE_SUFFIXES):
        members = tuple(member_names)
        if has_native_code(members):
            return tuple(sorted(f"native:{top}" for top in top_level_names(members)))
    return ()


def claims(artifacts: Iterable[tuple[Iterable[str], str]]) -> dict[str, str]:
    """Map each unit to a digest, for all artifacts of a job, given as their units and their digest.

    A unit that several artifacts share (two jars with classes of one package) is defined by all of them together.
    """
    found: dict[str, set[str]] = {}
    for claimed, digest in artifacts:
        for unit in claimed:
            found.setdefault(unit, set()).add(digest)
    return {unit: _joint(digests) for unit, digests in sorted(found.items())}


def _joint(digests: set[str]) -> str:
    if len(digests) == 1:
        return next(iter(digests))
    return hashlib.sha256(" ".join(sorted(digests)).encode()).hexdigest()


def has_native_code(member_names: Iterable[str]) -> bool:
    """Whether an archive holds code that Python loads as a shared library."""
    return any(name.endswith(NATIVE_SUFFIXES) for name in member_names)


def is_damage(error: Exception) -> bool:
    """Whether an archive could not be read or unpacked because of its content, not for lack of space or permission."""
    if isinstance(error, OSError):
        return error.errno in _DAMAGE_BY_NUMBER
    return isinstance(error, _DAMAGE)


def top_level_names(member_names: Iterable[str]) -> frozenset[str]:
    """Return the names under which an archive's packages and modules are imported."""
    found = set[str]()
    for name in member_names:
        top, below, _ = installed_path(name).partition("/")
        if name.endswith(CODE_SUFFIXES):
            found.add(top if below else top.partition(".")[0])  # acme_fast.cpython-311-x86_64-linux-gnu.so
    return frozenset(name for name in found if name.isidentifier())


def installed_path(member_name: str) -> str:
    """Return where an installer puts a member of a wheel, below site-packages; empty if it goes elsewhere."""
    data = _WHEEL_DATA.match(member_name)
    if data is None:
        return member_name
    return member_name[data.end() :] if data[1] else ""  # scripts, headers


def _of_jar(member_names: Iterable[str]) -> tuple[str, ...]:
    """Return the units of a jar. All jars are cut at the same depth: two with a common class always share a unit."""
    classes = [_MULTI_RELEASE.sub("", name, count=1) for name in member_names if name.endswith(".class")]
    places = {PurePosixPath(name).parent.parts for name in classes if PurePosixPath(name).name != "module-info.class"}
    return tuple(sorted({"java:" + "/".join(place[:JAVA_DEPTH]) for place in places}))
