"""Named clusters of a user: for each, its address and the files that prove who the user is (E10).

They are in `contexts.json` in the user's configuration directory, which only the user can read. A token is never in it:
a context names the file of the token. Pure but for reading and writing that file.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.near import did_you_mean

VARIABLE: Final = "MINFLINKD_CONTEXT"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILE: Final = "contexts.json"
_LARGEST: Final = 1 << 20  # bytes of the file


class Context(NamedTuple):
    """A cluster. The files are absolute paths; None: found as without a context."""

    address: str  # or several, separated by commas
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


class Contexts(NamedTuple):
    contexts: dict[str, Context]
    current: str | None = None  # the one that is used if no other is named

    def named(self, name: str) -> Context:
        """Raises Failure."""
        if name not in self.contexts:
            hint = did_you_mean(name, self.contexts)
            raise Failure(
                f"There is no context {name!r}.\n{hint}`minflinkd context list` lists them, `context add` adds one.",
                ExitCode.NOT_FOUND,
            )
        return self.contexts[name]


def user_directory(environ: Mapping[str, str]) -> Path:
    """Return the configuration directory of minflinkd's commands, which need not exist."""
    home = Path(environ.get("HOME") or Path.home())
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "minflinkd"


def check_name(name: str) -> str:
    """Raises Failure."""
    if not _NAME.fullmatch(name):
        raise Failure(
            f"{name!r} cannot be the name of a context.\nUse letters, digits, '.', '_' and '-', at most 64.",
            ExitCode.REFUSED,
        )
    return name


def read_contexts(environ: Mapping[str, str]) -> Contexts:
    """Return the user's contexts; none if there is no file. Raises Failure."""
    path = user_directory(environ) / _FILE
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            content = file.read(_LARGEST + 1)
    except FileNotFoundError:
        return Contexts({})
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}.", ExitCode.REFUSED) from error
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Failure(
            f"Other users can change {path}, which says where your commands go.\n"
            f"Look at what is in it, then take that away: chmod 600 {path}",
            ExitCode.REFUSED,
        )
    try:
        value = json.loads(content)
        contexts = {str(name): _context(fields) for name, fields in value["contexts"].items()}
        current = value.get("current")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Failure(
            f"{path} is not what `minflinkd context` writes: {error!r}.\nMend it, or delete it and add the contexts.",
            ExitCode.REFUSED,
        ) from error
    return Contexts(contexts, current if current in contexts else None)


def _context(fields: Mapping[str, object]) -> Context:
    """Raises TypeError and KeyError."""
    known = {name: fields.get(name.replace("_", "-")) for name in Context._fields}
    for name, value in known.items():
        if not isinstance(value, str) and not (value is None and name != "address"):
            raise TypeError(f"{name.replace('_', '-')} is no text")
    return Context(**known)  # type: ignore[arg-type]  # just checked


def shown(context: Context) -> dict[str, str]:
    """Return the context as it is stored and printed, without what is not set."""
    return {name.replace("_", "-"): value for name, value in context._asdict().items() if value is not None}


def write_contexts(contexts: Contexts, environ: Mapping[str, str]) -> Path:
    """Store the contexts, whole or not at all, for this user only. Returns the file. Raises Failure."""
    from minflinkd.runtime.private_files import write_whole

    directory = user_directory(environ)
    value = {
        "current": contexts.current,
        "contexts": {name: shown(context) for name, context in sorted(contexts.contexts.items())},
    }
    path = directory / _FILE
    try:
        with suppress(FileExistsError):
            directory.mkdir(parents=True, mode=0o700)
        write_whole(path, json.dumps(value, indent=2).encode() + b"\n", 0o600)
    except OSError as error:
        raise Failure(f"{error.filename or path} cannot be written: {error.strerror}.", ExitCode.REFUSED) from error
    return path
