"""Values with units, as configuration files, job files and messages contain them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.runtime.units import Duration, InvalidUnit, MemorySize, decode_unit, encode_unit


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500 ms", 0.5),
        ("10s", 10),
        ("10", 10),
        ("2 min", 120),
        ("1.5 h", 5400),
        ("1 d", 86400),
        ("0", 0),
        (7, 7),
        (0.25, 0.25),
    ],
)
def test_a_duration_is_written_with_a_unit_or_as_bare_seconds(text: object, seconds: float) -> None:
    """Values may have units (E20)."""
    assert Duration.parse(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("64 MiB", 64 << 20), ("1 GiB", 1 << 30), ("10 MB", 10_000_000), ("1.5k", 1536), ("17", 17), (17, 17), ("0", 0)],
)
def test_a_size_is_written_with_a_unit_or_as_bare_bytes(text: object, size: int) -> None:
    """Values may have units (E20)."""
    assert MemorySize.parse(text) == size


@pytest.mark.parametrize("text", ["", "s", "-1 s", "1 parsec", "1 s 2 s", True, None, "nan", "1e3 s"])
def test_what_is_not_a_duration_is_refused_with_examples_of_one(text: object) -> None:
    """An error says what is allowed (E20)."""
    with pytest.raises(InvalidUnit, match="such as 500 ms"):
        Duration.parse(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Duration(0), "0 s"),
        (Duration(0.1), "100 ms"),
        (Duration(1.5), "1500 ms"),
        (Duration(90), "90 s"),
        (Duration(600), "10 min"),
        (Duration(3600), "1 h"),
        (Duration(1e-7), "0.0000001 s"),
        (MemorySize(0), "0 B"),
        (MemorySize(1000), "1000 B"),
        (MemorySize(1536 << 20), "1536 MiB"),
        (MemorySize(1 << 30), "1 GiB"),
    ],
)
def test_a_value_is_shown_in_its_largest_whole_unit(value: Duration | MemorySize, text: str) -> None:
    """Values may have units (E20)."""
    assert str(value) == text


@given(st.floats(min_value=0, max_value=1e15))
def test_every_duration_reads_back_as_it_was(seconds: float) -> None:
    """The file that a daemon gives to its TaskManagers says exactly what the daemon has (E20)."""
    value = Duration(seconds)
    assert Duration.parse(str(value)) == Duration.parse(value) == value
    assert decode_unit(Duration, encode_unit(value)) == value


@given(st.integers(min_value=0, max_value=1 << 62))
def test_every_size_reads_back_as_it_was(size: int) -> None:
    """The file that a daemon gives to its TaskManagers says exactly what the daemon has (E20)."""
    value = MemorySize(size)
    assert MemorySize.parse(str(value)) == MemorySize.parse(value) == value
    assert decode_unit(MemorySize, encode_unit(value)) == value
