"""Values that are never shown (E40). As in the configuration, the name of a key decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minflinkd.runtime.secrets import MASK, is_sensitive


def masked(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values as strings, the sensitive ones masked."""
    return {key: MASK if is_sensitive(key) else str(value) for key, value in values.items()}
