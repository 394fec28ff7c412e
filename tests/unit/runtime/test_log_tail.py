"""The end of the daemon's log is kept, with where it is in all that was logged."""

from __future__ import annotations

import io

from minflinkd.runtime.log_tail import Kept, LogTail


def test_the_end_is_kept_and_the_bytes_before_it_are_counted() -> None:
    """So a reader who asks for what follows an offset gets it once, also after lines were dropped."""
    out = io.StringIO()
    tail = LogTail(out, kept=10)
    tail.write("first\n")
    assert tail.end() == Kept(0, b"first\n")
    tail.write("ärger\n")
    assert tail.end() == Kept(6, "ärger\n".encode())
    assert tail.end().end == 13
    assert out.getvalue() == "first\närger\n"
