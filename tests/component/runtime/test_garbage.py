"""The garbage collector of the daemon's process."""

from __future__ import annotations

import subprocess
import sys

COLLECT = """
import gc, weakref
from minflinkd.runtime.garbage import collect_seldom, keep_all

class Node:
    pass

collect_seldom()
imported = gc.get_freeze_count()
assert imported > 1_000
started = [[] for _ in range(30_000)]
keep_all()
assert gc.get_freeze_count() > imported + 30_000
node = Node()
node.itself = node
gone = weakref.ref(node)
del node
kept = [[] for _ in range(30_000)]
assert gone() is None
"""


def test_cycles_are_still_found_and_what_was_there_is_not_looked_at_again() -> None:
    """The test uses a process of its own, because the collector belongs to the whole process (A4)."""
    done = subprocess.run([sys.executable, "-c", COLLECT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
