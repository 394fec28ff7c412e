"""Which of several options is at fault, and what the fault says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException

from minflinkd.taskmanager.session.analysis.option_checks import refused_options


def refusing(*wrong: str) -> Callable[[Mapping[str, str]], None]:
    """Return a check that fails, and quotes the option, while any of these options is there."""

    def attempt(options: Mapping[str, str]) -> None:
        for name in wrong:
            if name in options:
                raise PySparkException(f"cannot parse {options[name]}")

    return attempt


def test_the_fault_is_at_the_option_without_which_it_works() -> None:
    """A fault names what to change (J4)."""
    (fault,) = refused_options("vertices.a.source", {"sep": ",", "maxColumns": "x"}, refusing("maxColumns"))
    assert fault.path == "vertices.a.source.options.maxColumns"
    assert "x" in fault.problem


def test_each_of_several_wrong_options_has_a_fault_of_its_own() -> None:
    """All faults are reported at once (J4)."""
    found = refused_options("vertices.a.source", {"a": "1", "sep": ",", "b": "2"}, refusing("a", "b"))
    assert [(fault.path.rpartition(".")[2], fault.problem[-1]) for fault in found] == [("a", "1"), ("b", "2")]


def test_an_option_that_needs_a_later_one_is_not_at_fault() -> None:
    """Users do not think of the order of options."""

    def attempt(options: Mapping[str, str]) -> None:
        if "end" in options and "start" not in options:
            raise PySparkException("end without start")
        refusing("wrong")(options)

    (fault,) = refused_options("vertices.a.source", {"end": "9", "wrong": "x", "start": "1"}, attempt)
    assert fault.path == "vertices.a.source.options.wrong"


def test_where_some_options_are_needed_the_fault_is_at_the_one_without_which_it_works() -> None:
    def attempt(options: Mapping[str, str]) -> None:
        if "servers" not in options:
            raise PySparkException("no servers")
        refusing("wrong")(options)

    (fault,) = refused_options("vertices.a.source", {"servers": "a:1", "wrong": "x"}, attempt)
    assert fault.path == "vertices.a.source.options.wrong"


def test_what_fails_without_options_too_is_no_fault_of_theirs() -> None:
    """A job that would run is not refused because the trial itself cannot run."""

    def always(options: Mapping[str, str]) -> None:
        raise PySparkException("no space left on the device")

    assert list(refused_options("vertices.a.source", {"sep": ","}, always)) == []


@pytest.mark.parametrize("other", [{}, {"kafka.ssl.key.password": "other"}])
def test_a_secret_is_not_shown_whoever_quotes_it(other: dict[str, str]) -> None:
    """A secret appears neither as the value nor in Spark's sentence (E40)."""
    options = {"kafka.sasl.jaas.config": "user=u password=hunter2", **other}
    faults = list(refused_options("vertices.a.source", options, refusing(*options)))
    assert len(faults) == len(options)
    assert "hunter2" not in f"{faults}"


NAMES = "abcdef"


@given(
    order=st.permutations(NAMES),
    wrong=st.frozensets(st.sampled_from(NAMES)),
    needs=st.dictionaries(st.sampled_from("abc"), st.sampled_from("def"), max_size=3),
)
def test_exactly_the_options_that_nothing_can_make_right_are_at_fault(
    order: list[str], wrong: frozenset[str], needs: dict[str, str]
) -> None:
    """An option is wrong by itself, or because it needs one that is wrong, in whatever order they are written."""

    def attempt(options: Mapping[str, str]) -> None:
        refusing(*wrong)(options)
        for name in options:
            if needs.get(name, name) not in options:
                raise PySparkException(f"{name} needs {needs[name]}")

    hopeless = wrong | {name for name, other in needs.items() if other in wrong}
    found = {fault.path.rpartition(".")[2] for fault in refused_options("v.source", dict.fromkeys(order, "x"), attempt)}
    assert found == hopeless
