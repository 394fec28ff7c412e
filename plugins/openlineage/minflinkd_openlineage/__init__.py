"""Emits an OpenLineage event when a job starts, completes, fails or is cancelled, with its inputs and outputs.

Options, as `listeners.openlineage.<option>`: docs/monitoring.md.
"""

from minflinkd_openlineage.emitter import OpenLineage

__all__ = ["OpenLineage"]
