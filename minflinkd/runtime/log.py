"""Configures structlog: JSON or console output, one line for each event. The only global logging state."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

import structlog

from minflinkd.runtime.log_tail import Kept, LogTail


def as_json(form: str) -> bool:
    """Whether `log.format` means JSON lines here; `auto` means console on a terminal, otherwise JSON."""
    return form == "json" or (form == "auto" and not sys.stderr.isatty())


_tail: list[LogTail] = []


def keep_tail(out: TextIO) -> TextIO:
    """Return a stream for `configure` that also remembers the end of the log, for `tail`."""
    _tail[:] = [LogTail(out)]
    return cast(TextIO, _tail[0])


def tail() -> Kept:
    """Return the last lines of the log; nothing if nobody keeps them."""
    return _tail[0].end() if _tail else Kept(0, b"")


def configure(*, json: bool = False, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Configure logging. Each process entry point calls it once."""
    out = stream or sys.stderr
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        # Without local variables: printing a crashed component's state would block the event loop for a second.
        else structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if json:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level)),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )


@contextmanager
def warnings_only(level: str = "WARNING") -> Iterator[None]:
    """Log only warnings, on stderr, for a command whose user waits: stdout is for its answer."""
    before = structlog.get_config()
    configure(level=level)
    try:
        yield
    finally:
        structlog.configure(**before)
