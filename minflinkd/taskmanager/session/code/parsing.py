"""Makes threads call `ast.parse` one after the other, in Python versions that need it.

Python 3.11 before 3.11.8 has one counter for the depth of a syntax tree in the whole process. The garbage collector can
run while a tree is built, and a finalizer can then let another thread run. If this thread parses as well, the counter
is wrong, and `ast.parse` raises "SystemError: AST constructor recursion depth mismatch"
(https://github.com/python/cpython/issues/106905).

User code may parse without knowing it: `inspect.getsource` of a class parses, and so does `inspect.signature` of a C
function. The tasks of a session start on threads of one process, so two jobs that start at the same time could make
each other fail.
"""

from __future__ import annotations

import ast
import functools
import sys
import threading
from typing import Any


def parse_one_at_a_time() -> None:
    """Replace `ast.parse` in this process by a function that takes a lock. Do nothing in other Python versions."""
    if not (3, 11) <= sys.version_info < (3, 11, 8):
        return
    parse, lock = ast.parse, threading.RLock()

    @functools.wraps(parse)
    def parse_in_turn(*arguments: Any, **options: Any) -> Any:
        with lock:
            return parse(*arguments, **options)

    setattr(ast, parse.__name__, parse_in_turn)
