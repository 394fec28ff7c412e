"""The rows that flow through every vertex of a shape, and the interface of what a vertex does with them.

All vertices have the same four columns, so that any of them may follow any other. What a vertex computes is written
twice: as the SQL or Python of the job, and as plain Python over lists of rows, which is the batch it is compared with.
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
    """What a vertex is written with. `version`: of the job, which a hot restart replaces by the next."""

    id: str
    inputs: tuple[str, ...]
    version: int = 1


@dataclass(frozen=True)
class Operator:
    """What a vertex does. Subclasses are values, so that a shape can be compared and made smaller."""

    inputs: ClassVar[int] = 1
    stateful: ClassVar[bool] = False
    last_stateful: ClassVar[bool] = False  # Spark allows no other stateful operator after it in the same query
    needs_time: ClassVar[bool] = False  # of its inputs

    @property
    def name(self) -> str:
        """For counting what occurs."""
        return type(self).__name__

    def keeps_time(self) -> bool:
        """`ts` is event time after it, if it was before."""
        return True

    def sql(self, context: Context) -> str | None:
        return None

    def python(self, context: Context) -> str | None:
        """The body of `def <id>(inputs, params)`, with whatever it needs."""
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
    """As Spark's."""
    return value % divisor
