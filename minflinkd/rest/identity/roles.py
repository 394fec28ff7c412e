"""Who somebody is to the HTTP endpoint, and what that lets them do (E41). Pure."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase

import msgspec

from minflinkd.rest.errors import RequestError


class Role(IntEnum):
    """Each role includes those before it."""

    ANYBODY = 0  # without a log-in; no token has it
    VIEW = 1  # read everything that is shown
    OPERATE = 2  # cancel, stop, rescale, take savepoints: nothing that brings new code
    SUBMIT = 3  # run code
    ADMIN = 4  # the cluster itself

    def __str__(self) -> str:
        return self.name.lower()


class Forbidden(RequestError):
    """It is known who asks, and they may not do this."""

    code = "forbidden"
    status = 403


@dataclass(frozen=True, kw_only=True)
class Identity:
    name: str  # of a token, or such as `uid 1000`; for logs and people
    role: Role
    jobs: tuple[str, ...] = ()  # patterns of the names of jobs; empty: all jobs
    token_id: str = ""  # of the token that proved it: a session ends with its token
    until_ms: int = 0  # since 1970: when the proof ends, and sessions with it; 0: the token says so, or never

    def reaches(self, job_name: str) -> bool:
        return not self.jobs or any(fnmatchcase(job_name, pattern) for pattern in self.jobs)


ANONYMOUS = Identity(name="anonymous", role=Role.ADMIN)  # everybody, where no log-in is asked for


def written(identity: Identity) -> str:
    """Return an identity as the value of a header. `read` reads it."""
    return base64.urlsafe_b64encode(msgspec.json.encode(identity)).decode()


def read(text: str) -> Identity:
    """Raises ValueError."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=Identity)
    except (binascii.Error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def require_role(identity: Identity, role: Role) -> None:
    """Raises Forbidden."""
    if identity.role < role:
        raise Forbidden(
            f"this needs the role {role}, and {identity.name} has {identity.role}",
            hint="use a token with that role; `minflinkd token create` makes one",
        )


def require_cluster(identity: Identity, what: str) -> None:
    """Refuse a change that is not about one job to those who are limited to some jobs. Raises Forbidden."""
    if identity.jobs:
        raise Forbidden(
            f"{identity.name} is limited to the jobs {', '.join(identity.jobs)}, and {what} is not about one of them",
            hint="use a token that is not limited to some jobs",
        )


def require_job(identity: Identity, job_name: str) -> None:
    """Raises Forbidden."""
    if not identity.reaches(job_name):
        raise Forbidden(
            f"{identity.name} is limited to the jobs {', '.join(identity.jobs)}, and this job is not one of them",
            hint="use a token for this job, or one that is not limited to some jobs",
        )
