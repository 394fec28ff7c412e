"""What `minflinkd state` asks for, and how it shows an answer."""

from __future__ import annotations

import click
import pytest

from minflinkd.cli.state import key_of
from minflinkd.rest.state import skew


def test_keys_are_passed_on_as_a_text_or_as_fields() -> None:
    """A bare text stands for itself; fields become one JSON object (E19c)."""
    assert key_of(()) is None
    assert key_of(("AA",)) == "AA"
    assert key_of(("carrier=AA", "window.start=2024-01-01 10:00:00")) == (
        '{"carrier": "AA", "window.start": "2024-01-01 10:00:00"}'
    )
    with pytest.raises(click.UsageError, match="its field"):
        key_of(("carrier=AA", "BB"))


def test_skew_is_the_largest_partition_beside_the_mean() -> None:
    """1 if all are equal; no figure where there is nothing to compare (E19c)."""
    assert skew([10, 10, 10, 10]) == 1.0
    assert skew([40, 0, 0, 0]) == 4.0
    assert skew([0, 0]) is None
    assert skew([]) is None
