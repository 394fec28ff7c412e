"""Which lines of a TaskManager's log concern a job. Pure.

A TaskManager runs tasks of several jobs. Its own lines name the job, or an attempt of one of its tasks; the line about
an attempt's deployment names both. Spark names the attempt in the paths of its files. A stack trace goes with the line
before it. What user code prints names no job, so it is always shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_RECORD = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")  # how lines of log4j, and of a console log, begin
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_ATTEMPT = re.compile(rb'attempt"?[=:] ?"?\'?([0-9a-f]{32})')


class JobLines:
    """Feed it the lines of one file in their order. `attempts`: those of the job that are known beforehand."""

    def __init__(self, job_id: str, attempts: Iterable[str] = ()) -> None:
        self._job = job_id.encode()
        self._names = {self._job, *(attempt.encode() for attempt in attempts)}
        self._goes_on = False  # whether the lines that follow belong to the record before
        self._concerns = True

    @property
    def attempts(self) -> frozenset[str]:
        """Of the job, as far as the lines have named them."""
        return frozenset(name.decode() for name in self._names if name != self._job)

    def concern(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Those that concern the job."""
        return (line for line in lines if self._look(line))

    def _look(self, line: bytes) -> bool:
        plain = _COLOUR.sub(b"", line)
        is_json = plain.startswith(b"{")
        if is_json or _RECORD.match(plain):
            self._goes_on = not is_json  # one of JSON is whole
            if self._job in plain and (named := _ATTEMPT.search(plain)):
                self._names.add(named[1])
            self._concerns = any(name in plain for name in self._names)
            return self._concerns
        return self._concerns if self._goes_on else True
