"""Set-up of structlog: JSON or console lines, one an event. The only place with global logging state."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import structlog


def as_json(form: str) -> bool:
    """Whether `log.format` means JSON lines here; `auto` is console on a terminal, else JSON."""
    return form == "json" or (form == "auto" and not sys.stderr.isatty())


def configure(*, json: bool = False, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Called once by each process entry point."""
    out = stream or sys.stderr
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if json
        # Without the local variables: a crashed component's state takes the event loop a second to print.
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
    """For a command that somebody waits for: stdout is for its answer, stderr for what he should know."""
    before = structlog.get_config()
    configure(level=level)
    try:
        yield
    finally:
        structlog.configure(**before)
