"""Options of a request that may be given by their name alone, such as `?dry-run`."""

from __future__ import annotations

from aiohttp import web

from minflinkd.rest.errors import InvalidRequest

_YES = frozenset({"", "true", "1"})
_NO = frozenset({"false", "0"})


def flag(request: web.Request, name: str) -> bool:
    """Return the value of a flag, by default false. Raises InvalidRequest."""
    value = request.query.get(name, "false").lower()
    if value not in _YES | _NO:
        raise InvalidRequest(f"{name} is {value[:80]!r}", hint="true or false")
    return value in _YES
