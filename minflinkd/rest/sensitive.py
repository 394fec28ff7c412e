"""Values that are never shown (E40), by the rule of the configuration: what the name of a key gives away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minflinkd.runtime.secrets import MASK, is_sensitive


def masked(values: Mapping[str, Any]) -> dict[str, str]:
    """As texts, the sensitive ones hidden."""
    return {key: MASK if is_sensitive(key) else str(value) for key, value in values.items()}
