"""Which of several options is at fault, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from pyspark.errors import PySparkException

from minflinkd.taskmanager.session.option_checks import refused_options


def refusing(*wrong: str) -> Callable[[Mapping[str, str]], None]:
    """Fails as long as one of these options is there, and quotes it."""

    def attempt(options: Mapping[str, str]) -> None:
        for name in wrong:
            if name in options:
                raise PySparkException(f"cannot parse {options[name]}")

    return attempt


def test_the_fault_is_at_the_option_without_which_it_works() -> None:
    """J4: a fault names what to change."""
    (fault,) = refused_options("vertices.a.source", {"sep": ",", "maxColumns": "x"}, refusing("maxColumns"))
    assert fault.path == "vertices.a.source.options.maxColumns"
    assert "x" in fault.problem


def test_two_wrong_options_are_a_fault_of_all() -> None:
    (fault,) = refused_options("vertices.a.source", {"a": "1", "b": "2"}, refusing("a", "b"))
    assert fault.path == "vertices.a.source"


def test_what_fails_without_options_too_is_no_fault_of_theirs() -> None:
    """A job that would run is not refused because the trial itself cannot."""

    def always(options: Mapping[str, str]) -> None:
        raise PySparkException("no space left on the device")

    assert list(refused_options("vertices.a.source", {"sep": ","}, always)) == []


@pytest.mark.parametrize("other", [{}, {"kafka.ssl.key.password": "other"}])
def test_a_secret_is_not_shown_whoever_quotes_it(other: dict[str, str]) -> None:
    """E40: neither in the value nor in Spark's sentence."""
    options = {"kafka.sasl.jaas.config": "user=u password=hunter2", **other}
    (fault,) = refused_options("vertices.a.source", options, refusing(*options))
    assert "hunter2" not in f"{fault}"
