"""The rows that flow through every vertex of a shape, and the interface of what a vertex does with them.

All vertices have the same four columns, so any of them may follow any other. What a vertex computes is written twice:
as the SQL or Python of the job, and as plain Python over lists of rows. The latter is the batch that the job is
compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

EPOCH = 1_700_000_040  # seconds since 1970, a full minute
SECOND = 1_000_000  # microseconds
SCHEMA = "id BIGINT, k STRING, ts TIMESTAMP, v BIGINT"
COLUMNS = ("id", "k", "ts", "v")


class Row(NamedTuple):
    id: int
    k: str
    ts: int  # microseconds since 1970
    v: int


@dataclass(frozen=True)
class Context:
    """What the text of a vertex depends on. `version` is the job's; a hot restart replaces it with the next."""

    id: str
    inputs: tuple[str, ...]
    version: int = 1


@dataclass(frozen=True)
class Operator:
    """What a vertex does. Subclasses are values, so that a shape can be compared and reduced."""

    inputs: ClassVar[int] = 1
    stateful: ClassVar[bool] = False
    last_stateful: ClassVar[bool] = False  # Spark allows no other stateful operator after it in the same query
    needs_time: ClassVar[bool] = False  # its inputs must have event time

    @property
    def name(self) -> str:
        """The name under which it is counted."""
        return type(self).__name__

    def keeps_time(self) -> bool:
        """Whether `ts` is still event time in the output, if it was in the input."""
        return True

    def sql(self, context: Context) -> str | None:
        return None

    def python(self, context: Context) -> str | None:
        """Return the body of `def <id>(inputs, params)`, with whatever it needs."""
        return None

    def rows(self, *inputs: Sequence[Row]) -> list[Row]:
        raise NotImplementedError

    def vertex(self, context: Context) -> dict[str, Any]:
        if (text := self.sql(context)) is not None:
            return {"sql": " ".join(text.split())}
        return {"python": f"shape:{function(context.id)}"}


def function(vertex: str) -> str:
    return f"make_{vertex}"


def pmod(value: int, divisor: int) -> int:
    """The modulus as Spark computes it."""
    return value % divisor
