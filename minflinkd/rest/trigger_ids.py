"""The ids of operations that a request triggers."""

from __future__ import annotations

from minflinkd.rest.errors import InvalidRequest
from minflinkd.runtime.ids import IdSource


def trigger_id(given: str | None, ids: IdSource) -> str:
    """Return the id that a client has chosen, which lets it repeat the request; or a new one. Raises InvalidRequest."""
    if given is None:
        return ids.hex()
    if not (len(given) == 32 and all(c in "0123456789abcdef" for c in given)):
        raise InvalidRequest(f"triggerId is {given[:80]!r}", hint="32 hex digits, or nothing")
    return given
