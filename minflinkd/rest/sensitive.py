"""Values that are never shown (E40), by Flink's rule: what the name of a key gives away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MASK = "******"

_WORDS = (
    "password",
    "passwd",
    "secret",
    "token",
    "credential",
    "apikey",
    "api-key",
    "access-key",
    "accesskey",
    "account.key",
    "auth-params",
    "service-key",
    "basic-auth",
    "jaas.config",
    "http-headers",
)


def is_sensitive(key: str) -> bool:
    folded = key.lower().replace("_", "-")
    return any(word in folded for word in _WORDS)


def masked(values: Mapping[str, Any]) -> dict[str, str]:
    """As texts, the sensitive ones hidden."""
    return {key: MASK if is_sensitive(key) else str(value) for key, value in values.items()}
