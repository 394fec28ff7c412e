"""Every row, one after the other, and a page of them all.

Each figure is also added to `history.jsonl`, for `make bench-compare`.
"""

from __future__ import annotations

import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import (
    amplification,
    beside_plain,
    blob,
    cancel,
    checkpoint,
    checkpoint_size,
    exchange_reuse,
    history,
    hot_restart,
    http_overview,
    latency,
    machine,
    partitions,
    records,
    recovery,
    scale,
    start,
    storage_files,
    submit,
    table_sinks,
    takeover,
    tls,
    upload_cost,
)
from benchmarks.figures import Row
from benchmarks.nexmark import comparison as nexmark
from benchmarks.running import quick_asked, run, say

ROWS = (
    start,
    submit,
    cancel,
    recovery,
    takeover,
    hot_restart,
    partitions,
    checkpoint,
    checkpoint_size,
    amplification,
    upload_cost,
    storage_files,
    beside_plain,
    table_sinks,
    nexmark,
    latency,
    exchange_reuse,
    blob,
    tls,
    scale,
    http_overview,
    history,
)
PAGE = Path(__file__).parents[1] / "build" / "benchmarks.md"


def main() -> None:
    quick = quick_asked(__doc__)
    where, commit, began = machine.description(), records.commit(), datetime.now(UTC).isoformat(timespec="seconds")
    say(where)
    rows: list[Row] = []
    failed = False
    for module in ROWS:
        try:
            row = run(module.measure, quick=quick)
        except Exception:  # the other rows are still useful
            traceback.print_exc()
            failed = True
        else:
            rows.append(row)
            records.append(records.of_row(row, began, commit, machine.kind(), quick=quick))
    PAGE.parent.mkdir(exist_ok=True)
    how = "with `--quick`" if quick else "in full"
    PAGE.write_text("\n".join(["# Benchmarks", "", f"Run {how} on {where}.", "", *(row.markdown() for row in rows)]))
    say(f"the page is {PAGE}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
