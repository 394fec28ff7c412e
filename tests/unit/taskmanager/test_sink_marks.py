"""What the marks of a sink say: what is published, and what a commit still has to publish (K1)."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from minflinkd.taskmanager.session.sinks.marks import Mark, Part, latest, missing, transactions

TOKENS = [("a", 3), ("b", 2)]


@pytest.mark.parametrize(
    ("mark", "left"),
    [
        (None, [Part("a", 0, 3), Part("b", 0, 2)]),
        (Mark(1, 4, "z", 9), [Part("a", 0, 3), Part("b", 0, 2)]),
        (Mark(1, 5, "a", 1), [Part("a", 1, 2), Part("b", 0, 2)]),
        (Mark(1, 4, "a", 3), [Part("b", 0, 2)]),
        (Mark(1, 5, "b", 2), []),
        (Mark(1, 5, "z", 9), []),
        (Mark(1, 6, "z", 9), []),
    ],
    ids=[
        "nothing was published",
        "an earlier checkpoint, which is confirmed",
        "part of a token",
        "a token that an earlier checkpoint covered too",
        "everything",
        "later tokens of the same checkpoint",
        "a later checkpoint",
    ],
)
def test_a_commit_goes_on_where_the_last_transaction_ended(mark: Mark | None, left: list[Part]) -> None:
    """The mark names the last token, or the checkpoint tells whether its tokens came before or after it."""
    assert missing(mark, 5, TOKENS) == left


def test_of_several_marks_the_last_one_holds() -> None:
    """A sink that writes to several topics leaves a mark in each of them."""
    marks = [Mark(number, 1, str(number), number) for number in (2, 9, 5)]
    assert latest([mark.encode() for mark in marks]) == marks[1]
    assert latest([]) is None


def test_rows_are_divided_into_transactions_in_their_order() -> None:
    """None is larger than it may be, and none is empty."""
    parts = [Part("a", 1, 3), Part("b", 0, 0), Part("c", 0, 4)]
    divided = transactions(parts, 3)
    assert divided == [[Part("a", 1, 3)], [Part("c", 0, 3)], [Part("c", 3, 1)]]
    assert transactions(parts, 100) == [[Part("a", 1, 3), Part("c", 0, 4)]]
    assert transactions([], 3) == []


class _Job:
    """A job with one sink, whose commits are repeated, late, or die after any transaction.

    `covered` are the rows that some complete checkpoint covers, in their order: the rows that there must be.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.most = self.rng.randint(1, 6)
        self.published: list[tuple[str, int]] = []
        self.mark: Mark | None = None
        self.covered: list[tuple[str, int]] = []
        self.commits: list[tuple[int, list[tuple[str, int]]]] = []
        self.unconfirmed: list[tuple[str, int]] = []
        self.checkpoint = self.tokens = 0

    def stage(self) -> list[tuple[str, int]]:
        count = self.rng.randint(0, 3)
        self.tokens += count
        return [(f"t{self.tokens - n}", self.rng.randint(1, 7)) for n in reversed(range(count))]

    def complete(self) -> None:
        """Complete a checkpoint, which also covers what earlier ones covered and nobody has confirmed."""
        self.checkpoint += self.rng.randint(1, 3)
        staged = self.stage()
        self.covered += [(token, row) for token, rows in staged for row in range(rows)]
        self.unconfirmed += staged
        self.commits.append((self.checkpoint, list(self.unconfirmed)))

    def commit(self, number: int, *, dies: bool) -> None:
        checkpoint, tokens = self.commits[number]
        for transaction in transactions(missing(self.mark, checkpoint, tokens), self.most):
            if dies and self.rng.random() < 0.4:
                return
            for part in transaction:
                self.published += [(part.token, part.skip + n) for n in range(part.rows)]
            last = transaction[-1]
            number = 1 if self.mark is None else self.mark.number + 1
            self.mark = Mark(number, checkpoint, last.token, last.skip + last.rows)

    def run(self) -> None:
        for _ in range(self.rng.randint(1, 12)):
            self.complete()
            if self.rng.random() < 0.4:  # an attempt that only seems dead commits late
                self.commit(self.rng.randrange(len(self.commits)), dies=True)
            self.commit(-1, dies=True)
            if self.rng.random() < 0.5:  # a restart, or a repeated commit: only then is it confirmed
                self.commit(-1, dies=False)
                self.unconfirmed = []
        self.commit(-1, dies=False)


@pytest.mark.parametrize("seed", range(300))
def test_every_covered_row_is_published_once_and_in_order(seed: int) -> None:
    """Whatever dies, is repeated or comes late: the rows are those of the complete checkpoints, each once (K1)."""
    job = _Job(seed)
    job.run()
    assert job.published == job.covered, Counter(job.published) - Counter(job.covered)
