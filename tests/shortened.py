"""How much of a long test `make test` does; `make test-all` does all of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

_SHARE = 3  # of the examples, `make test` draws one in so many


def first(values: Iterable[Any], count: int = 1) -> list[Any]:
    """Return values for `parametrize`. All but the first `count` are slow."""
    return [value if n < count else pytest.param(value, marks=pytest.mark.slow) for n, value in enumerate(values)]


def examples(count: int) -> int:
    """Return how many examples hypothesis draws of `count`."""
    return count if settings.get_current_profile_name() == "exploring" else count // _SHARE
