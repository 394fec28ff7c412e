"""The options below `storage.s3.` (S7)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from minflinkd.runtime.units import MemorySize

_LARGEST_COPY = MemorySize(5 << 30)  # copied by S3 with one request
_SMALLEST_PART = MemorySize(5 << 20)  # S3 accepts no smaller one, except as the last


class S3Options(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Credentials and region come from the SDK's own chain (environment, profiles, roles) unless they are set here."""

    endpoint_url: str | None = None  # for a store that is not Amazon's
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None
    profile: str | None = None  # in the SDK's configuration files
    anonymous: bool = False  # no credentials at all, for public buckets
    path_style: bool | None = None  # the bucket in the path, not in the host; default: true with an endpoint-url
    part_size: MemorySize = MemorySize(8 << 20)  # an object may have 10,000 parts
    parts_at_once: Annotated[int, msgspec.Meta(ge=1)] = 4  # of one object being written
    copy_part_size: MemorySize = MemorySize(256 << 20)  # larger objects are copied in parts, each within its timeout
    sort_listings: bool = False  # for a store that lists by directory, not by key; keeps each listing in memory
    connect_timeout: Annotated[float, msgspec.Meta(gt=0)] = 10.0  # seconds

    def __post_init__(self) -> None:
        for name, size in (("part-size", self.part_size), ("copy-part-size", self.copy_part_size)):
            if size < _SMALLEST_PART:
                raise ValueError(f"{name} has to be at least {_SMALLEST_PART}")
        if self.copy_part_size > _LARGEST_COPY:
            raise ValueError(f"copy-part-size has to be at most {_LARGEST_COPY}")
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access-key and secret-key belong together")
        if self.anonymous and (self.access_key or self.profile):
            raise ValueError("anonymous excludes access-key and profile")

    def __repr__(self) -> str:
        return f"S3Options(endpoint_url={self.endpoint_url!r}, region={self.region!r})"  # no credentials in logs
