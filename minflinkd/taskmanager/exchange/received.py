"""Whether what another TaskManager says are entries can be entries. It may be broken, or somebody else (E45)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from minflinkd.runtime.errors import MALFORMED
from minflinkd.taskmanager.exchange.access import AT_ONCE, ExchangeUnreachable, is_data_file
from minflinkd.taskmanager.exchange.log import Entry, ExchangeDamaged

_LARGEST = 2**53  # a number that every JSON reader takes; as bytes or milliseconds, more than there can be


def parse(source: str, body: bytes) -> list[Entry]:
    """Return the entries. `source` names the exchange in errors.

    Raises ExchangeUnreachable if this is no answer with entries, ExchangeDamaged if no task can have written them.
    """
    try:
        entries = msgspec.json.decode(body, type=list[Entry])
    except MALFORMED as error:
        raise ExchangeUnreachable(f"{source} answers something else than entries: {error}") from error
    if (why := fault(entries)) is not None:
        raise ExchangeDamaged(f"an entry of {source} {why}")
    return entries


def fault(entries: Sequence[Entry]) -> str | None:
    """Return what is wrong with the entries, to follow `an entry`."""
    if len(entries) > AT_ONCE:
        return f"is one of {len(entries)}, and at most {AT_ONCE} come in one answer"
    names = set[str]()
    for entry in entries:
        for number in (entry.batch_id, entry.checkpoint_id, entry.watermark_ms or 0):
            if abs(number) >= _LARGEST:
                return "has a number of a batch, a checkpoint or a time that cannot be one"
        for file in entry.files:
            if not is_data_file(file.name):
                return f"names {file.name[:80]!r}, which is no data file"
            if not (0 <= file.size < _LARGEST and 0 <= file.rows < _LARGEST):
                return f"names the data file {file.name} of a size that no file has"
            if file.name in names:
                return f"names the data file {file.name}, which the same answer has named already"
            names.add(file.name)
    return None
