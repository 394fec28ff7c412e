from __future__ import annotations

from minflinkd.rest.exceptions import stack_trace
from minflinkd.runtime.errors import ErrorInfo

TRACE = "Traceback (most recent call last):\n  ...\nValueError: no room\n"


def test_what_was_being_read_stands_below_the_traceback() -> None:
    """`info` and the exceptions show the hint; the message is in the traceback already (issue 15, 13)."""
    error = ErrorInfo(code="user-code", message="ValueError: no room", hint="read /in/1.json", traceback=TRACE)
    assert stack_trace(error) == TRACE + "(read /in/1.json)"


def test_a_traceback_without_a_hint_is_shown_as_it_is() -> None:
    """Nothing is repeated."""
    assert stack_trace(ErrorInfo(code="user-code", message="ValueError: no room", traceback=TRACE)) == TRACE
