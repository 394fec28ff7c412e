"""Faults that a simulation is shown, to see whether it finds them: the real code, broken on purpose for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Planted = Callable[[], AbstractContextManager[None]]


@contextmanager
def patched(owner: Any, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    """`owner.name` is what is made of it."""
    original = getattr(owner, name)
    setattr(owner, name, made(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
