"""Recognizes secrets, which are never shown, by their names (E40)."""

from __future__ import annotations

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


def is_sensitive(name: str) -> bool:
    """Whether a key, with any separators, is the name of a secret."""
    folded = name.lower().replace("_", "").replace("-", "").replace(".", "")
    return any(word in folded for word in _WORDS)
