"""What a micro-batch has staged for a table, and what a commit still has to publish. Pure.

Each token has a number that grows from token to token. A commit to the table carries the largest number among its
tokens, in the table's own transaction. So the table itself says what is published: all tokens up to that number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_WIDENED = frozenset({("int", "long"), ("float", "double")})  # types of Iceberg
SPEC = "partition spec"  # it may have changed: the table still knows the old one
BY_NAME = "columns by name"  # whether readers look for the columns of the files by name, as they have no ids
_OF_FILES = frozenset({SPEC, BY_NAME})  # what files are, and no fact of the table


class DataFile(msgspec.Struct, frozen=True):
    """A file of rows that is in the table's directory, and that no commit names yet.

    `path` is as the table's log has it. `partition` has the text of each partition column; None: NULL. `about` is what
    the table's log says of its columns, in JSON. `gone`: it has keys of rows to delete; only files that wait in the
    checkpoint have such.
    """

    path: str
    size: int
    rows: int
    partition: dict[str, str | None] = {}
    about: str = "{}"
    gone: bool = False


class Staged(msgspec.Struct, frozen=True):
    """The token of a micro-batch.

    `job`: who has staged it; a job may start from a savepoint of another one. `table`: the table's name. `relies_on`:
    what must hold for the table when the files are committed: a name for each fact, and the fact.
    """

    job: str
    table: str
    number: int
    files: tuple[DataFile, ...]
    relies_on: dict[str, str] = {}

    @property
    def spec(self) -> str:
        """The partition spec of the files. A commit has files of one."""
        return self.relies_on.get(SPEC, "")


def next_number(last: int, now: float) -> int:
    """Return the number of a token that is staged at `now`, in seconds. `last`: the largest one that is known.

    It is the time in milliseconds. So two attempts that go on from one checkpoint give different numbers, and neither
    takes the other's rows for its own. Numbers also grow if the clock is late.
    """
    return max(last + 1, int(now * 1000))


def unpublished(published: int | None, tokens: Sequence[Staged]) -> list[Staged]:
    """Return the tokens that are not in the table. `published`: the number that the table has; None: none."""
    return [token for token in tokens if published is None or token.number > published]


def changed(relies_on: Mapping[str, str], facts: Mapping[str, str]) -> list[str]:
    """Return the names of the facts that no longer hold. A type may have become a wider one, which readers know."""
    return [
        name
        for name, fact in relies_on.items()
        if name not in _OF_FILES and (now := facts.get(name)) != fact and (fact, now) not in _WIDENED
    ]


def decoded(token: Any) -> Staged:
    return msgspec.convert(token, Staged)
