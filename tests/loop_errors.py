"""No callback, connection or transport of an event loop may fail unnoticed. The conftest of a folder takes this up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

# Finalizers report these when garbage is collected, so in whichever test runs at that time.
OF_A_FINALIZER = ("was never retrieved", "was destroyed but it is pending", "Unclosed ")


@pytest.fixture(autouse=True)
def no_unhandled_exception() -> Iterator[None]:
    """Nobody awaits what a loop calls by itself. Of its exceptions only a log line would be left."""
    unhandled: list[dict[str, Any]] = []
    handle = asyncio.BaseEventLoop.call_exception_handler

    def seen(loop: asyncio.BaseEventLoop, context: dict[str, Any]) -> None:
        by_chance = any(words in context.get("message", "") for words in OF_A_FINALIZER)
        # Streams of Python 3.11 ask a cancelled handler for its exception.
        by_chance |= isinstance(context.get("exception"), asyncio.CancelledError)
        if not by_chance and loop.get_exception_handler() is None:  # otherwise the test checks them itself
            unhandled.append(context)
        handle(loop, context)

    with pytest.MonkeyPatch.context() as patch:  # the test's own monkeypatch would outlive the test's fixtures
        patch.setattr(asyncio.BaseEventLoop, "call_exception_handler", seen)
        yield
    assert not unhandled, f"the event loop had exceptions that nobody handles: {unhandled}"
