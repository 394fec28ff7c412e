"""Recognizes secrets, which are never shown: by their names, and in URLs (E40)."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "******"
_WORDS: Final = (  # Flink's list, and names that Azure and Google use
    "password",
    "passwd",
    "secret",
    "token",
    "credential",
    "apikey",
    "accesskey",
    "accountkey",
    "servicekey",
    "privatekey",
    "connectionstring",
    "authparams",
    "basicauth",
    "jaasconfig",
    "httpheaders",
)
_CHAINED: Final = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_BEFORE_THE_HOST: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/?#\s]*@|[^/?#\s@]*:(?!\d*(?:[/?#\s]|$))\S*@)")
_QUERY: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^?\s]*)\?\S+")


def is_sensitive(name: str) -> bool:
    """Whether a key, with any separators, is the name of a secret."""
    folded = name.lower().replace("_", "").replace("-", "").replace(".", "")
    return any(word in folded for word in _WORDS)


def without_credentials(text: str) -> str:
    """Hide what may be a credential in the URLs of a text: user and password, and the query as a whole.

    A signed URL has its signature in the query, under a name that every provider chooses anew. A URL that was not
    quoted correctly, with a `/` in its password, is hidden up to its last `@`.
    """
    return "::".join(
        _QUERY.sub(rf"\1?{MASK}", _BEFORE_THE_HOST.sub(rf"\1{MASK}@", part)) for part in _CHAINED.split(text)
    )
