"""What is never shown: values whose names give away that they are secrets (E40)."""

from __future__ import annotations

from typing import Final

MASK: Final = "******"
_WORDS: Final = (  # Flink's list, with the names of Azure's and Google's
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


def is_sensitive(name: str) -> bool:
    """Whether a key gives away that its value is a secret, with any separators."""
    folded = name.lower().replace("_", "").replace("-", "").replace(".", "")
    return any(word in folded for word in _WORDS)
