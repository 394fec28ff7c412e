"""The blobs of the BlobServer."""

from __future__ import annotations

from minflinkd.rest.schemas.answer import Answer


class BlobAccess(Answer, frozen=True, kw_only=True):
    """The address of the BlobServer, and the token that requests to it must carry."""

    url: str
    token: str | None  # None: no token is needed


class UploadedBlob(Answer, frozen=True, kw_only=True):
    """`key`: for the artifact in the job file."""

    key: str
    size: int  # bytes


class Blob(Answer, frozen=True, kw_only=True):
    """Sizes in bytes. `job` is `none` for a transient blob without a job."""

    key: str
    job: str
    kind: str  # permanent or transient
    size: int
    references: int
    state: str  # receiving, uploaded, referenced, kept, staged, condemned or unknown
    created: int  # when it was stored on this server


class BlobTotals(Answer, frozen=True, kw_only=True, omit_defaults=True):
    job: str | None = None
    blobs: int
    size: int
    states: dict[str, int]  # number of blobs by state


class Blobs(Answer, frozen=True, kw_only=True):
    """A part of the list. The totals cover all blobs that match the request."""

    blobs: tuple[Blob, ...]
    offset: int
    truncated: bool  # more follow
    totals: BlobTotals
    jobs: tuple[BlobTotals, ...]
