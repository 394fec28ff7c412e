"""A job's artifacts on disk: what each contains, and how it is unpacked for Python to import."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from minflinkd.jobgraph import libraries
from minflinkd.runtime.errors import Consequence, MinflinkError


class UnusableArtifact(MinflinkError):
    """No session can use an artifact: it is damaged, or conflicts with another one of the same job."""

    code = "unusable-artifact"
    consequence = Consequence.FATAL


@dataclass(frozen=True)
class Artifact:
    """One file of a job. `members`: the files in it, for archives."""

    name: str
    path: Path
    digest: str  # SHA-256
    members: tuple[str, ...] = ()

    @property
    def is_jar(self) -> bool:
        return self.name.endswith(".jar")

    @property
    def is_library(self) -> bool:
        """Whether it belongs to the session as a whole, until that ends: a jar, or an archive with native code."""
        return self.is_jar or libraries.has_native_code(self.members)

    @property
    def units(self) -> tuple[str, ...]:
        return libraries.units(self.name, self.members)

    @property
    def names(self) -> frozenset[str]:
        """The names by which its packages and modules are imported."""
        return libraries.top_level_names(self.members or (self.name,))


def read(artifacts: Mapping[str, str]) -> tuple[Artifact, ...]:
    """Read artifacts, in the job's order. Raises UnusableArtifact."""
    return tuple(_read(name, Path(path)) for name, path in artifacts.items())


def _read(name: str, path: Path) -> Artifact:
    suffix = PurePosixPath(name).suffix
    if suffix not in libraries.ARTIFACT_SUFFIXES:
        hint = f"one of {', '.join(libraries.ARTIFACT_SUFFIXES)}"
        raise UnusableArtifact(f"artifact {name}: {suffix or 'no suffix'} is not supported", hint=hint)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if suffix == ".py":
        return Artifact(name, path, digest)
    with _archive(name, path) as archive:
        members = tuple(member.filename for member in archive.infolist() if not member.is_dir())
    return Artifact(name, path, digest, members)


@contextmanager
def _archive(name: str, path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive. Raises UnusableArtifact if it is damaged; problems of this machine are raised as they are."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except Exception as error:
        if not libraries.is_damage(error):
            raise
        raise UnusableArtifact(f"artifact {name} is not a zip archive, or cannot be unpacked: {error}") from error


def digest_of(artifacts: Iterable[Artifact], *more: str) -> str:
    digest = hashlib.sha256()
    for text in (*more, *(part for artifact in artifacts for part in (artifact.name, artifact.digest))):
        digest.update(f"{len(text)}:{text}".encode())
    return digest.hexdigest()


def unpack(artifact: Artifact, target: Path) -> None:
    """Unpack an artifact below a directory. Raises UnusableArtifact.

    A file that is there already stays: on Python's path, too, the first one would win.
    """
    if not artifact.members:
        if not (target / artifact.name).exists():
            shutil.copyfile(artifact.path, target / artifact.name)
        return
    made, written = set[Path](), set[Path]()
    with _archive(artifact.name, artifact.path) as archive:
        for member in artifact.members:
            path = libraries.installed_path(member)
            if not path or _leaves(path):
                continue
            place = target / path
            if place.is_file():
                continue
            _check_package(artifact, path, target, written)
            written.add(place)
            try:
                if place.parent not in made:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    made.add(place.parent)
                with archive.open(member) as source, place.open("xb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
            except (FileExistsError, NotADirectoryError) as error:
                raise UnusableArtifact(f"artifact {artifact.name}: {path} is a file and a directory") from error


def _check_package(artifact: Artifact, path: str, target: Path, own: set[Path]) -> None:
    """Raise UnusableArtifact if a package would hide a module of an earlier artifact.

    In one directory, Python prefers the package `a/` to the module `a.py`, even if the module's artifact comes first.
    """
    package, stem = (target / path).parent, PurePosixPath(path).stem
    if stem != "__init__":
        return
    for suffix in (".py", ".pyc"):
        module = package.with_name(package.name + suffix)
        if package != target and module not in own and module.is_file():
            name = module.relative_to(target)
            raise UnusableArtifact(
                f"artifact {artifact.name}: {path} is a package, and an earlier artifact has the module {name}",
                hint="rename one of the two",
            )


def merge(artifact: Artifact, source: Path, target: Path) -> None:
    """Move an artifact's files to where those of others are, all or none.

    Of files outside packages, such as a LICENSE, the first artifact's stays. Raises UnusableArtifact if a file of a
    package is there with other contents.
    """
    files = [path.relative_to(source) for path in sorted(source.rglob("*")) if path.is_file()]
    new = []
    for file in files:
        place = target / file
        above = [target / parent for parent in file.parents]
        if place.is_dir() or any(parent.exists() and not parent.is_dir() for parent in above):
            raise UnusableArtifact(f"artifact {artifact.name}: {file} is a file here and a directory in another one")
        if not place.exists():
            new.append(file)
        elif _is_importable(artifact, file) and not filecmp.cmp(source / file, place, shallow=False):
            raise UnusableArtifact(
                f"artifact {artifact.name}: {file} differs from the one in an earlier artifact",
                hint="include only one version of it",
            )
    for file in new:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).rename(target / file)


def _is_importable(artifact: Artifact, file: Path) -> bool:
    return file.parts[0].partition(".")[0] in artifact.names


def _leaves(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return path.startswith(("/", "\\")) or ".." in parts or "\0" in path


def remove(directory: Path) -> None:
    """Remove a directory, even while a worker writes byte code there. Idempotent."""
    for _ in range(5):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.lexists(directory):
            return
