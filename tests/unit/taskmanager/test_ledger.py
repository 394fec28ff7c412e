"""What sinks owe to checkpoints: staged, covered, confirmed, or covered by none."""

from __future__ import annotations

from minflinkd.storage.publication import StagedFile, StagedToken
from minflinkd.taskmanager.session.state.ledger import Ledger


def token(epoch: int) -> StagedToken:
    return StagedToken("attempt", epoch, f'"{epoch}"')


def test_a_checkpoint_covers_what_earlier_ones_have_not_confirmed() -> None:
    """Until a checkpoint is confirmed, the next one carries its tokens as well, in order (J12, J13)."""
    ledger = Ledger("job", "out")
    for epoch in (2, 0, 1):
        ledger.stage(epoch, tokens=(token(epoch),))
    assert ledger.cover(1, 0).tokens == (token(0),)
    assert ledger.cover(2, 1).tokens == (token(0), token(1))
    ledger.confirm(0)
    assert ledger.cover(3, 2).tokens == (token(1), token(2))
    assert ledger.cover(3, 2).root == ""


def test_what_lies_behind_the_last_snapshot_is_covered_by_none() -> None:
    ledger = Ledger("job", "out")
    for epoch in range(4):
        ledger.stage(epoch, tokens=(token(epoch),))
    assert ledger.beyond(1) == (token(2), token(3))
    assert ledger.beyond(-1) == tuple(token(epoch) for epoch in range(4))


def test_a_micro_batch_that_runs_again_takes_the_place_of_its_first_run() -> None:
    ledger = Ledger("job", "out", "file:///out")
    ledger.stage(0, files=(StagedFile("a", "x"),))
    ledger.stage(0, files=(StagedFile("b", "y"),))
    assert ledger.cover(1, 0).files == (StagedFile("b", "y"),)
