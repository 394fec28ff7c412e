"""Blob keys (B1, B41): the names of blobs, parsed before the text can touch a path."""

from __future__ import annotations

import re
import secrets
from enum import StrEnum
from typing import NamedTuple, Self

import msgspec

from minflinkd.runtime.errors import InvalidId
from minflinkd.runtime.ids import JobId, parse_job_id

_KEY = re.compile(r"([pt])-([0-9a-f]{64})-([0-9a-f]{32})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SET = re.compile(r"[0-9a-f]{32}")
NO_JOB = "none"  # used instead of a job id, for transient blobs that belong to no job


class BlobKind(StrEnum):
    """B2: The kind of a blob."""

    PERMANENT = "p"  # kept and recovered with its job
    TRANSIENT = "t"  # deleted by its user, and never recovered


class BlobKey(msgspec.Struct, frozen=True, order=True):
    """The kind, the SHA-256 of the content in hex, and 16 random bytes in hex. As text: `p-<sha256>-<random>`."""

    kind: BlobKind
    sha256: str
    unique: str

    @classmethod
    def new(cls, kind: BlobKind, sha256: str) -> Self:
        return cls(kind, parse_sha256(sha256), secrets.token_hex(16))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises InvalidId."""
        match = _KEY.fullmatch(text)
        if match is None:
            raise InvalidId(f"{text[:140]!r} is not a blob key", hint="p- or t-, 64 hexadecimal digits, -, 32 more")
        return cls(BlobKind(match[1]), match[2], match[3])

    @property
    def is_permanent(self) -> bool:
        return self.kind is BlobKind.PERMANENT

    def __str__(self) -> str:
        return f"{self.kind.value}-{self.sha256}-{self.unique}"


class Blob(NamedTuple):
    """A blob of a job, or of none. As text: `<key> of job <id>`."""

    job_id: JobId | None
    key: BlobKey

    @property
    def is_permanent(self) -> bool:
        return self.key.is_permanent

    def __str__(self) -> str:
        return f"{self.key} of job {owner_name(self.job_id)}"


def parse_sha256(text: str) -> str:
    """Raises InvalidId."""
    if not _SHA256.fullmatch(text):
        raise InvalidId(f"{text[:80]!r} is not a SHA-256", hint="64 hexadecimal digits, as sha256sum prints")
    return text


def parse_kind(text: str) -> BlobKind:
    """Raises InvalidId."""
    try:
        return BlobKind(text)
    except ValueError:
        raise InvalidId(f"{text[:80]!r} is not a kind of blob", hint="p (permanent) or t (transient)") from None


def parse_set(text: str) -> str:
    """Parse the name of a set of uploads, which its client chose (B6). Raises InvalidId."""
    if not _SET.fullmatch(text):
        raise InvalidId(f"{text[:80]!r} is not a set of uploads", hint="32 random hexadecimal digits")
    return text


def parse_owner(text: str) -> JobId | None:
    """Parse a job's id; None for `none`. Raises InvalidId."""
    return None if text == NO_JOB else parse_job_id(text)


def owner_name(job_id: JobId | None) -> str:
    """Return the directory name of a job's blobs."""
    return NO_JOB if job_id is None else parse_job_id(job_id)
