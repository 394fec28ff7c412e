"""Compacts one table, and ends: reads what is asked as a line of JSON, and prints the answer as one.

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

from minflinkd.runtime.errors import MinflinkError
from minflinkd.taskmanager.session.sinks.compaction import delta, iceberg
from minflinkd.taskmanager.session.sinks.compaction.result import Answer, Asked
from minflinkd.taskmanager.session.sinks.tables.delta import DeltaTarget
from minflinkd.taskmanager.session.sinks.tables.failures import said
from minflinkd.taskmanager.session.sinks.tables.targets import table_of

_NICE: Final = 10  # the queries come first


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what is half written is deleted
    os.nice(_NICE)
    asked = Asked.of_line(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_input, name="end with input", daemon=True).start()
    sys.stdout.buffer.write(msgspec.json.encode(carried_out(asked)))


def carried_out(asked: Asked) -> Answer:
    wanted = asked.sink.compaction
    assert wanted is not None
    target, answer = table_of(asked.sink), Answer()
    told = {"minflinkd.compaction": asked.owner}
    try:
        if isinstance(target, DeltaTarget):
            answer = msgspec.structs.replace(answer, joined=delta.compact(target, wanted, told))
            return msgspec.structs.replace(answer, deleted=delta.expire(target, wanted, told))
        answer = msgspec.structs.replace(answer, joined=iceberg.compact(target, wanted, told))
        return msgspec.structs.replace(answer, deleted=iceberg.expire(target, wanted))
    except MinflinkError as error:
        return msgspec.structs.replace(answer, failure=str(error))
    except Exception as error:  # of a library
        return msgspec.structs.replace(answer, failure=f"{target.name}: {said(error)}")


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1 << 16):  # not by `sys.stdin`: at its end Python wants that for itself
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
