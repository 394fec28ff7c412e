"""What a user may have meant (E10)."""

from __future__ import annotations

import pytest

from minflinkd.cli.near import did_you_mean, nearest, nearest_id

IDS = ["3fa9c2" + "0" * 26, "77d1aa" + "1" * 26]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("clcks", "clicks"),
        ("CLICKS", "clicks"),
        ("cli", "clicks"),
        ("orders", "orders-eu"),
        ("zebra", None),
        ("", None),
    ],
)
def test_the_nearest_name_is_found_if_one_is_near(text: str, meant: str | None) -> None:
    assert nearest(text, ["clicks", "orders-eu"]) == meant
    assert did_you_mean(text, ["clicks", "orders-eu"]) == ("" if meant is None else f"Did you mean {meant!r}? ")


@pytest.mark.parametrize(("text", "meant"), [("3fa8", 0), ("3f9c2", 0), ("77d2a", 1), ("b0b0", None), ("3f", None)])
def test_the_beginning_of_an_id_may_have_one_character_wrong(text: str, meant: int | None) -> None:
    assert nearest_id(text, IDS) == (None if meant is None else IDS[meant])
