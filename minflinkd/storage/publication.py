"""Two-phase publication of a files sink (J12): staged under names that readers skip, published with a checkpoint.

Layout below the sink's directory `root`:

    _minflinkd/<job>/<sink>/staged/<attempt>/<epoch>/...   what micro-batches wrote, not yet visible
    _minflinkd/<job>/<sink>/manifests/<checkpoint>.json    what checkpoint n published; its presence is the commit
    part-<checkpoint>-....parquet                          published, each file whole, each row once

Everything here is idempotent, and runs wherever the storage can be reached.
"""

from __future__ import annotations

import msgspec

SERVICE_DIRECTORY = "_minflinkd"


class StagedFile(msgspec.Struct, frozen=True):
    """Both relative to the sink's root."""

    staged: str
    final: str
    size: int = 0


class SinkTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """What one sink of one task publishes when a checkpoint completes. `root` is a URI."""

    job_id: str
    sink: str
    root: str
    checkpoint_id: int
    files: tuple[StagedFile, ...] = ()
