"""The interface of listeners (E19b): what a plugin is told of jobs, and where it is found.

A third party adds one in a package of its own, with an entry point in the group `minflinkd.listeners`. A listener is
used if the configuration has an option of it: `listeners.<name>.<option>`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from minflinkd.runtime.errors import Consequence, ErrorInfo, MinflinkError

GROUP: Final = "minflinkd.listeners"


class InvalidListenerOption(MinflinkError):
    """`listeners.*` names a listener that is not installed, or an option that it does not take."""

    code = "invalid-listener-option"
    consequence = Consequence.REFUSED


class ChangeKind(StrEnum):
    STARTED = "started"  # submitted and accepted; a daemon that begins to lead tells it again of jobs that run
    COMPLETED = "completed"  # FINISHED
    FAILED = "failed"
    CANCELED = "canceled"


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """A source or a sink of a job. Values of sensitive options are masked."""

    vertex: str
    format: str  # Spark's, or `python`
    path: str = ""
    options: Mapping[str, str] = {}


class JobChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a job. The same change may be told twice, under another daemon: `job_id` and `kind` identify it."""

    kind: ChangeKind
    job_id: str  # 32 hexadecimal digits
    name: str
    at_ms: int
    started_ms: int
    owner: str = ""
    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()
    sql: str = ""  # of the job's vertices, one after another; empty: there is none
    error: ErrorInfo | None = None  # of a job that has failed


class Listener(ABC):
    """Made once for a leadership, from its options. Raises InvalidListenerOption.

    Nothing that it does can harm a job: it is told from a queue of its own, which drops the oldest changes if it is
    full, and what it raises is logged.
    """

    @abstractmethod
    def __init__(self, options: Mapping[str, str]) -> None: ...

    async def start(self) -> None:  # noqa: B027  # many need none
        """Called once, before the first change."""

    @abstractmethod
    async def told(self, change: JobChange) -> None:
        """Take a change. Must not block the event loop. May take up to a minute, while later changes wait."""

    async def aclose(self) -> None:  # noqa: B027
        """Called once, after the last change."""
