"""Selects the lines of a TaskManager's log that concern a job. Pure.

A TaskManager runs tasks of several jobs. Its own lines name the job or an attempt of one of the job's tasks; the line
about an attempt's deployment names both. Spark names the attempt in the paths of its files. A stack trace belongs to
the line before it. Output of user code names no job, so it is always shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_RECORD = re.compile(rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")  # how log4j's and console lines begin
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_ATTEMPT = re.compile(rb'attempt"?[=:] ?"?\'?([0-9a-f]{32})')


class JobLines:
    """Feed it the lines of one file in order. `attempts` are the attempts of the job that are already known."""

    def __init__(self, job_id: str, attempts: Iterable[str] = ()) -> None:
        self._job = job_id.encode()
        self._names = {self._job, *(attempt.encode() for attempt in attempts)}
        self._goes_on = False  # whether following lines may belong to the same record
        self._concerns = True

    @property
    def attempts(self) -> frozenset[str]:
        """The attempts of the job that the lines have named so far."""
        return frozenset(name.decode() for name in self._names if name != self._job)

    def concern(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the lines that concern the job."""
        return (line for line in lines if self._look(line))

    def _look(self, line: bytes) -> bool:
        plain = _COLOUR.sub(b"", line)
        is_json = plain.startswith(b"{")
        if is_json or _RECORD.match(plain):
            self._goes_on = not is_json  # a JSON record is a single line
            if self._job in plain and (named := _ATTEMPT.search(plain)):
                self._names.add(named[1])
            self._concerns = any(name in plain for name in self._names)
            return self._concerns
        return self._concerns if self._goes_on else True
