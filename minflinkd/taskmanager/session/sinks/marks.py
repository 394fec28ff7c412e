"""What a sink with marks has published, and what a commit still has to publish. Pure.

A commit publishes the rows of its tokens in their order, in one transaction of the target or in several. Each
transaction carries a mark: the last token that it wrote rows of, and how many of that token's rows are written by now.
So a commit that is repeated, by whoever, goes on where the last transaction ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Mark(msgspec.Struct, frozen=True):
    """`number` grows with each mark of a sink: of several, the largest holds."""

    number: int
    checkpoint: int
    token: str
    rows: int

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


class Part(msgspec.Struct, frozen=True):
    """Rows of one token: `rows` of them, after the first `skip`."""

    token: str
    skip: int
    rows: int


def latest(texts: Sequence[str]) -> Mark | None:
    """Return the mark that holds. Raises msgspec.DecodeError for texts that are no marks."""
    marks = [msgspec.json.decode(text, type=Mark) for text in texts]
    return max(marks, key=lambda mark: mark.number, default=None)


def missing(mark: Mark | None, checkpoint: int, tokens: Sequence[tuple[str, int]]) -> list[Part]:
    """Return what the commit of `checkpoint` has yet to publish of its tokens, given with the rows of each.

    Tokens come in the order in which they were staged, and a later checkpoint covers those of an earlier one until they
    are confirmed. If the mark names none of them, they are all newer than it, or all older: the checkpoint says which.
    """
    parts = [Part(token, 0, rows) for token, rows in tokens]
    if mark is None:
        return parts
    at = next((n for n, part in enumerate(parts) if part.token == mark.token), None)
    if at is None:
        return [] if checkpoint <= mark.checkpoint else parts
    rest = Part(mark.token, mark.rows, parts[at].rows - mark.rows)
    return [rest, *parts[at + 1 :]] if rest.rows > 0 else parts[at + 1 :]


def transactions(parts: Sequence[Part], most: int) -> list[list[Part]]:
    """Divide parts into transactions of at most `most` rows each. The rows keep their order."""
    divided: list[list[Part]] = []
    room = 0
    for part in parts:
        skip, left = part.skip, part.rows
        while left:
            if not room:
                divided.append([])
                room = most
            rows = min(left, room)
            divided[-1].append(Part(part.token, skip, rows))
            skip, left, room = skip + rows, left - rows, room - rows
    return divided
