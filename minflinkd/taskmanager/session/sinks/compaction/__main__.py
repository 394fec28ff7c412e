"""Compacts one Iceberg table, and ends: reads what is asked as a line of JSON, and prints the answer as one.

It ends at once if its input is closed, as the session that has started it is gone then. A compaction that ends at any
moment leaves the table as it was, or compacted; perhaps with files that no version of it has.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Final

import msgspec
from msgspec.structs import replace

from minflinkd.runtime.errors import MinflinkError
from minflinkd.taskmanager.session.sinks.compaction import iceberg, iceberg_expiry
from minflinkd.taskmanager.session.sinks.compaction.messages import Answer, Request
from minflinkd.taskmanager.session.sinks.tables.failures import said
from minflinkd.taskmanager.session.sinks.tables.iceberg import IcebergTarget

_NICE: Final = 10  # the queries come first


def main() -> None:
    # Python reacts between two calls of a library: then complete files that no commit names are deleted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.nice(_NICE)
    request = Request.of_line(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_input, name="end with input", daemon=True).start()
    sys.stdout.buffer.write(msgspec.json.encode(carried_out(request)))


def carried_out(request: Request) -> Answer:
    """Join files, and delete those that only old versions have. If one fails, the other is done all the same."""
    wanted = request.sink.compaction
    assert wanted is not None
    target, answer, failures = IcebergTarget(request.sink), Answer(), list[str]()
    try:
        for joined in iceberg.compact(target, wanted, {"minflinkd.compaction": request.owner}):
            answer = replace(answer, joined=answer.joined + joined)
    except Exception as error:
        failures.append(_why(target.name, error))
    try:
        if request.expires:
            answer = replace(answer, deleted=iceberg_expiry.expire(target, wanted))
    except Exception as error:
        failures.append(_why(target.name, error))
    return replace(answer, failure="; ".join(dict.fromkeys(failures)))


def _why(table: str, error: Exception) -> str:
    if isinstance(error, MinflinkError):
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return f"{table}: {said(error)}"  # of a library


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1 << 16):  # not by `sys.stdin`: at its end Python wants that for itself
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
