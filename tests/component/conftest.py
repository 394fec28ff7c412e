"""For every component test: no callback, connection or transport of an event loop may fail unnoticed."""

from __future__ import annotations

from tests.loop_errors import no_unhandled_exception

__all__ = ["no_unhandled_exception"]
