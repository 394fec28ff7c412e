"""How a daemon or a TaskManager reports that it cannot run: on a terminal, or in a journal of JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from minflinkd.cli.exits import ExitCode, Failure

if TYPE_CHECKING:
    from minflinkd.runtime.errors import ErrorInfo


@contextmanager
def told(
    sentence: str, *, as_json: bool, codes: tuple[tuple[type[BaseException], ExitCode], ...] = ()
) -> Iterator[None]:
    """End the command if the block raises MinflinkError or OSError.

    The exit code is that of the first matching type in `codes`, otherwise DAEMON_FAILED.

    `sentence` is e.g. "The daemon cannot run". On a terminal the code, the problem and what to do follow it. In a log
    of JSON lines (`as_json`) all of it is one more JSON line.
    """
    import structlog

    from minflinkd.runtime.errors import MinflinkError

    try:
        yield
    except (MinflinkError, OSError) as error:
        code = next((code for kind, code in codes if isinstance(error, kind)), ExitCode.DAEMON_FAILED)
        info = error.info() if isinstance(error, MinflinkError) else _of_system(error)
        if as_json:
            structlog.get_logger().error(sentence, code=info.code, error=info.message, hint=info.hint, exit_code=code)
            raise SystemExit(code) from error
        raise Failure(
            "\n".join(filter(None, (f"{sentence}: [{info.code}] {info.message}", info.hint))), code
        ) from error


def _of_system(error: OSError) -> ErrorInfo:
    """Describe an error of the operating system, which has no code of ours."""
    from minflinkd.runtime.errors import ErrorInfo

    where = f"{error.filename}: " if error.filename else ""
    return ErrorInfo(code="internal", message=f"{where}{error.strerror or error}")


def announce(text: str, *, as_json: bool) -> None:
    """Tell a person at a terminal; a log of JSON lines already says it."""
    if not as_json:
        click.echo(text, err=True)
