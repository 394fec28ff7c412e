"""The blobs of the BlobServer."""

from __future__ import annotations

from minflinkd.rest.schemas.answer import Answer


class BlobAccess(Answer, frozen=True, kw_only=True):
    """Where the BlobServer is, and what its requests are to carry."""

    url: str
    token: str | None  # none: it asks for nothing


class Blob(Answer, frozen=True, kw_only=True):
    """Sizes in bytes. `job` is `none` for a transient one of no job."""

    key: str
    job: str
    kind: str  # permanent or transient
    size: int
    references: int
    state: str  # receiving, uploaded, referenced, kept, staged, condemned or unknown
    created: int  # when it was stored here


class BlobTotals(Answer, frozen=True, kw_only=True, omit_defaults=True):
    job: str | None = None
    blobs: int
    size: int
    states: dict[str, int]  # how many blobs are in which state


class Blobs(Answer, frozen=True, kw_only=True):
    """A part of the list; totals are of all blobs that were asked for."""

    blobs: tuple[Blob, ...]
    offset: int
    truncated: bool  # more follow
    totals: BlobTotals
    jobs: tuple[BlobTotals, ...]
