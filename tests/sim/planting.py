"""Planted faults: the real code is broken on purpose for a while, to see whether a simulation finds that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Planted = Callable[[], AbstractContextManager[None]]


@contextmanager
def patched(owner: Any, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    """Replace `owner.name` by what `made` makes of it."""
    original = getattr(owner, name)
    setattr(owner, name, made(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
