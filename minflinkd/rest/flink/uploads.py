"""Uploaded files that jobs are made of later: archives with a job file in them, or a job file alone.

A file never changes once it is there, so what is in it is read once. All of this blocks: call it on threads.
"""

from __future__ import annotations

import json
import posixpath
import re
import secrets
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minflinkd.jobgraph.document import LARGEST, parse_json, parse_yaml
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.rest.errors import InvalidRequest
from minflinkd.runtime.errors import Conflict, NotFound
from minflinkd.storage.os_errors import os_errors

MOST = 100  # files
MOST_MEMBERS = 10_000  # of an archive
LARGEST_ARTIFACTS = 256 * 1024**2  # bytes that are unpacked for one job
DEEPEST = 2  # folders above a job file in an archive
ZIPS, TARS, DOCUMENTS = (".zip", ".whl", ".jar"), (".tar", ".tar.gz", ".tgz"), (".json", ".yaml", ".yml")
_KEPT = re.compile(r"[^A-Za-z0-9._-]")
_ID = re.compile(r"[0-9a-f]{32}_.+")


@dataclass(frozen=True)
class Upload:
    """`entries`: its job files, and the name of the job in each."""

    id: str
    name: str
    uploaded_ms: int
    path: Path
    entries: Mapping[str, str]


@dataclass(frozen=True)
class Job:
    """A job as it is in an upload: what its file says, and its artifacts by name."""

    value: dict[str, Any]
    artifacts: Mapping[str, bytes]


class Uploads:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._entries: dict[str, Mapping[str, str]] = {}

    def list(self) -> list[Upload]:
        """Return all of them, the latest first. Raises StorageError."""
        with os_errors(self._directory):
            paths = [path for path in self._directory.glob("*") if _ID.fullmatch(path.name) and path.is_file()]
        return sorted(map(self._upload, paths), key=lambda one: (-one.uploaded_ms, one.id))

    def find(self, jar: str) -> Upload:
        """Raises NotFound, StorageError."""
        path = self._directory / jar
        if not _ID.fullmatch(jar) or not path.is_file():
            raise NotFound(f"there is no uploaded file {jar[:80]!r}", hint="GET /jars lists them")
        return self._upload(path)

    def draft(self) -> Path:
        """Return where a new file is to be written. Raises Conflict, StorageError."""
        with os_errors(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            if len(list(self._directory.iterdir())) >= MOST:
                raise Conflict(f"there are {MOST} uploaded files", hint="delete some of them: DELETE /jars/:jarid")
            return self._directory / f".{secrets.token_hex(8)}.part"

    def keep(self, draft: Path, name: str) -> Upload:
        """Keep a file that was written, if there is a job in it. Raises InvalidRequest, StorageError."""
        name = _KEPT.sub("_", name.rpartition("/")[2])[-120:]
        if not name.lower().endswith((*ZIPS, *TARS, *DOCUMENTS)):
            allowed = ", ".join((*ZIPS, *TARS, *DOCUMENTS))
            raise InvalidRequest(f"{name or 'the file'} is neither an archive nor a job file", hint=f"one of {allowed}")
        path = self._directory / f"{secrets.token_hex(16)}_{name}"
        entries = job_files(draft, name)
        if not entries:
            raise InvalidRequest(f"there is no job file in {name}", hint="put job.yaml at the top of the archive")
        with os_errors(path):
            draft.rename(path)
        self._entries[path.name] = entries
        return self._upload(path)

    def delete(self, jar: str) -> None:
        """Raises NotFound, StorageError."""
        path = self.find(jar).path
        with os_errors(path):
            path.unlink(missing_ok=True)
        self._entries.pop(jar, None)

    def _upload(self, path: Path) -> Upload:
        name = path.name.partition("_")[2]
        if path.name not in self._entries:
            try:
                self._entries[path.name] = job_files(path, name)
            except InvalidRequest:  # damaged since: it can still be listed, and deleted
                self._entries[path.name] = {}
        with os_errors(path):
            uploaded = round(path.stat().st_mtime * 1000)
        return Upload(path.name, name, uploaded, path, self._entries[path.name])


def job_files(path: Path, name: str) -> dict[str, str]:
    """Return the job files in a file, the one at the top first, with the names of their jobs. Raises InvalidRequest."""
    if name.lower().endswith(DOCUMENTS):
        return {name: _job_name(_document(path.read_bytes()[: LARGEST + 1], name))}
    with _Archive(path, name) as archive:
        found = {}
        candidates = [m for m in archive.members if m.lower().endswith(DOCUMENTS) and m.count("/") <= DEEPEST]
        for member in sorted(candidates, key=lambda one: (one.count("/"), one))[:100]:
            try:
                found[member] = _job_name(_document(archive.read(member, LARGEST), member))
            except InvalidRequest:  # another kind of file
                continue
        return found


def read_job(upload: Upload, entry: str | None) -> Job:
    """Return the job of a job file in an upload; None: of the first one. Raises InvalidRequest."""
    wanted = entry or next(iter(upload.entries), None)
    if wanted is None or wanted not in upload.entries:
        raise InvalidRequest(
            f"{upload.name} has no job file {wanted!r}", hint=" or ".join(upload.entries) or "upload it again"
        )
    if upload.name.lower().endswith(DOCUMENTS):
        value = _document(upload.path.read_bytes()[: LARGEST + 1], upload.name)
        if value.get("artifacts"):
            raise InvalidRequest("the job has artifacts", hint="upload an archive with the job file and its artifacts")
        return Job(value, {})
    with _Archive(upload.path, upload.name) as archive:
        value = _document(archive.read(wanted, LARGEST), wanted)
        named = _artifacts(value, posixpath.dirname(wanted))
        left, artifacts = LARGEST_ARTIFACTS, dict[str, bytes]()
        for name, member in named.items():
            artifacts[name] = archive.read(member, left)
            left -= len(artifacts[name])
    if not named and upload.name.lower().endswith(ZIPS):  # its modules are found in the archive itself
        artifacts[upload.name] = upload.path.read_bytes()
    return Job({**value, "artifacts": [{"name": name, "path": name} for name in artifacts]}, artifacts)


def _artifacts(value: Mapping[str, Any], folder: str) -> dict[str, str]:
    """Return the members of the archive that the job file names as artifacts, by the names of the artifacts."""
    found = {}
    entries = value.get("artifacts") or []
    for entry in entries if isinstance(entries, list) else []:
        path = entry.get("path") if isinstance(entry, Mapping) else entry
        if not isinstance(path, str) or "://" in path or path.startswith("/"):
            raise InvalidRequest(
                f"the artifact {str(path)[:80]!r} is not in the archive", hint="name it relative to the job file"
            )
        name = entry.get("name") if isinstance(entry, Mapping) else None
        found[str(name or posixpath.basename(path))] = posixpath.normpath(posixpath.join(folder, path))
    return found


def _document(text: bytes, name: str) -> dict[str, Any]:
    """Return a job file's content. Raises InvalidRequest if it is none."""
    try:
        value = (parse_json if name.lower().endswith(".json") else parse_yaml)(text).value
    except InvalidJobGraph as error:
        raise InvalidRequest(f"{name} cannot be read: {error.faults[0].problem if error.faults else error}") from error
    if not isinstance(value, dict) or "vertices" not in value:
        raise InvalidRequest(f"{name} is not a job file", hint="a job file has `vertices`")
    return value


def _job_name(value: Mapping[str, Any]) -> str:
    return str(value.get("name", ""))[:200]


def as_params(arguments: tuple[str, ...]) -> dict[str, Any]:
    """Return a program's arguments as the params of a job: `key=value`, `--key=value` or `--key value`.

    Raises InvalidRequest.
    """
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        name, equals, text = rest.pop(0).lstrip("-").partition("=")
        if not equals and rest:
            text, equals = rest.pop(0), "="
        if not name or not equals:
            raise InvalidRequest(f"the argument {name[:80]!r} has no value", hint="key=value, or --key value")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


class _Archive:
    """The regular files of an archive. Raises InvalidRequest if it cannot be read."""

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        try:
            if name.lower().endswith(ZIPS):
                self._zip: zipfile.ZipFile | None = zipfile.ZipFile(path)
                names = [info.filename for info in self._zip.infolist() if not info.is_dir()]
            else:
                self._zip, self._tar = None, tarfile.open(path)  # noqa: SIM115 - closed in __exit__
                names = []
                for member in self._tar:
                    if len(names) > MOST_MEMBERS:
                        break
                    if member.isfile():
                        names.append(member.name)
        except (OSError, zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
            raise InvalidRequest(f"{name} cannot be read as an archive: {error}") from error
        if len(names) > MOST_MEMBERS:
            raise InvalidRequest(f"{name} has more than {MOST_MEMBERS:,} files")
        self._by_path = {posixpath.normpath(each): each for each in names}
        self.members = list(self._by_path)

    def read(self, member: str, most: int) -> bytes:
        """Return a file of the archive. Raises InvalidRequest if it is not there, or has more bytes than that."""
        if member not in self._by_path:
            raise InvalidRequest(f"there is no {member[:80]!r} in {self._name}")
        try:
            if self._zip is not None:
                with self._zip.open(self._by_path[member]) as file:
                    data = file.read(most + 1)
            else:
                extracted = self._tar.extractfile(self._by_path[member])
                data = extracted.read(most + 1) if extracted is not None else b""
        except (OSError, zipfile.BadZipFile, tarfile.TarError, EOFError, RuntimeError, NotImplementedError) as error:
            raise InvalidRequest(f"{member[:80]!r} in {self._name} cannot be read: {error}") from error
        if len(data) > most:
            raise InvalidRequest(f"{member[:80]!r} in {self._name} is too large", hint=f"{most:,} bytes at most")
        return data

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        (self._zip or self._tar).close()
