"""Options of the GCS backend."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from minflinkd.runtime.units import MemorySize
from minflinkd.storage.options import InvalidStorageOption

QUANTUM: Final = MemorySize(256 << 10)  # until an upload ends, the server stores multiples of this
TOKENS: Final = ("google_default", "cache", "cloud", "anon")


class GcsOptions(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """`storage.gs.*`"""

    project: str = ""  # billed if `requester_pays`; empty: the credentials' project
    token: str = ""  # a file with credentials, or one of TOKENS; empty: the first of TOKENS that works
    endpoint_url: str = ""  # empty: STORAGE_EMULATOR_HOST, otherwise Google's
    requester_pays: bool = False
    part_size: MemorySize = MemorySize(16 << 20)

    def __repr__(self) -> str:
        return f"GcsOptions(project={self.project!r}, endpoint_url={self.endpoint_url!r})"  # no credentials in logs

    def check(self) -> None:
        """Check the values. Raises InvalidStorageOption, which does not show a token given instead of a file."""
        if self.token and self.token not in TOKENS and not os.path.isfile(self.token):
            hint = f"give a file with credentials that this process can read, or one of {', '.join(TOKENS)}"
            raise InvalidStorageOption("storage.gs.token names no file", hint=hint)
        if self.part_size < QUANTUM or self.part_size % QUANTUM:
            raise InvalidStorageOption(f"storage.gs.part-size is no multiple of {QUANTUM}", hint="16 MiB")
