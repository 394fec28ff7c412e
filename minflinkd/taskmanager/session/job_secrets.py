"""The secrets that jobs name in options, as `${secret:db-password}` (E44).

A secret is looked up on the TaskManager, each time that a task is built, in this order:

    <taskmanager.secrets.dir>/db-password
    $CREDENTIALS_DIRECTORY/db-password       a credential of the systemd unit (LoadCredential=)
    $MINFLINKD_SECRET_DB_PASSWORD            of the TaskManager

So it is in no job file, no record and no checkpoint. What was looked up is hidden in error texts. Code of jobs runs as
the same user as the session: it can read the same files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind, MinflinkError
from minflinkd.storage.masking import Mask

LARGEST = 64 * 1024  # bytes of a secret
VARIABLES = "MINFLINKD_SECRET_"


class UnknownSecret(MinflinkError):
    """A job names a secret that this TaskManager does not have, or cannot use. Another TaskManager may have it."""

    code = "unknown-secret"
    consequence = Consequence.RETRYABLE
    kind = Kind.JOB


@dataclass
class JobSecrets:
    """`directory`: the option `taskmanager.secrets.dir`; empty: none. Names are no paths: `params` checks them."""

    directory: str = ""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _known: set[str] = field(default_factory=set)

    def __call__(self, name: str) -> str:
        """Return a secret. Raises UnknownSecret."""
        value = self._find(name)
        self._known.add(value)
        return value

    def hidden(self, text: str) -> str:
        """Return the text without the secrets that were looked up in this process."""
        known = tuple(self._known)  # another thread may look one up meanwhile
        return Mask(known)(text) if known and text else text

    def hidden_in(self, error: ErrorInfo) -> ErrorInfo:
        return replace(error, message=self.hidden(error.message), traceback=self.hidden(error.traceback))

    def hidden_in_fault(self, fault: GraphFault) -> GraphFault:
        return replace(fault, problem=self.hidden(fault.problem), traceback=self.hidden(fault.traceback))

    def _find(self, name: str) -> str:
        directories = [place for place in (self.directory, self.environ.get("CREDENTIALS_DIRECTORY", "")) if place]
        for directory in directories:
            if (value := _read(Path(directory) / name, name)) is not None:
                return value
        variable = VARIABLES + name.upper().replace("-", "_").replace(".", "_")
        if value := self.environ.get(variable, ""):
            return value
        where = ", ".join(f"{place}/{name}" for place in directories)
        raise UnknownSecret(
            f"the secret {name} is not known to this TaskManager",
            hint=f"put it into {where or f'<taskmanager.secrets.dir>/{name}'}, or into ${variable}",
        )


def _read(path: Path, name: str) -> str | None:
    """Return the secret in this file without a newline at its end; None if there is no file. Raises UnknownSecret."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnknownSecret(f"the secret {name} cannot be read: {path}: {error.strerror or error}") from error
    if not stat.S_ISREG(mode) or mode & 0o007:
        raise UnknownSecret(
            f"every user of this machine can read the secret {name}, or it is no file: {path}",
            hint=f"chmod 600 {path}; if somebody may have read it, change the secret",
        )
    if len(content) > LARGEST:
        raise UnknownSecret(f"the secret {name} has more than {LARGEST} bytes: {path}")
    try:
        value = content.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UnknownSecret(f"the secret {name} is no text: {path}") from error
    if not value:
        raise UnknownSecret(f"the secret {name} is empty: {path}")
    return value
