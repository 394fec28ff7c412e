"""Keeps Spark's logs of file sources readable for the query that starts next (C11).

A file source has a log of the files that it has read. Every tenth entry is compact: it repeats all entries before it.
A query that starts finds out the interval from the compact entries that are there. If there are two, it is their
distance. If there is only one, Spark guesses. Example: a log was written in intervals of 20, and is at entry 52, with
`39.compact` as its last compact entry. From that alone, Spark takes the interval for 10, looks for `49.compact`, and
fails with "49.compact doesn't exist". It also fails at each restart.

A snapshot has only the last compact entry. So the one that was at the right distance before it is written again: it is
the part of the last one that had been read by then. Mostly Spark looks at its name only. But a query that started at
given offsets reads its log from the beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

_ENTRY = re.compile(r"(\d+)(\.compact)?")


def keep_intervals(checkpoint: Path, default: int) -> None:
    """Make the next query find the interval of each log below a checkpoint directory. `default`: Spark's setting."""
    for log in checkpoint.glob("sources/*"):
        present = {path.name for path in log.iterdir()}
        wanted = with_interval(present, default)
        for name in present - wanted:
            (log / name).unlink()
        for name in wanted - present:
            _write_again(log, name, max(present & wanted, key=_compact_number))


def _write_again(log: Path, name: str, later: str) -> None:
    """Write a compact entry, from a later one: each line but the first, the version, is a file with its entry.

    A later one that cannot be read is left to Spark, whose error names it.
    """
    try:
        version, *lines = (log / later).read_text("utf-8").splitlines()
        kept = [line for line in lines if int(json.loads(line)["batchId"]) <= _compact_number(name)]
    except (ValueError, KeyError, TypeError):
        return
    draft = log / f".{name}"
    draft.write_text("\n".join([version, *kept]), "utf-8")
    (log / f".{name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of an entry of that name that was there before
    draft.rename(log / name)


def _compact_number(name: str) -> int:
    match = _ENTRY.fullmatch(name)
    return int(match[1]) if match is not None and match[2] else -1


def with_interval(names: Iterable[str], default: int) -> set[str]:
    """Return the entries that a log should have, so that Spark finds an interval that fits them all. Pure.

    Earlier compact entries may be left out, or one added. All stay as they are if no interval fits, which takes a job
    that has changed Spark's setting.
    """
    present = set(names)
    entries = [(int(match[1]), bool(match[2])) for name in present if (match := _ENTRY.fullmatch(name))]
    compact = sorted(number for number, is_compact in entries if is_compact)
    if not compact:
        return present
    last = compact[-1]
    plain = [number for number, is_compact in entries if not is_compact and number > last]

    def fits(interval: int) -> bool:
        return (last + 1) % interval == 0 and not any((number + 1) % interval == 0 for number in plain)

    if fits(found := last - compact[-2] if len(compact) > 1 else guessed(last, default)):
        return present
    for interval in range(
        max(1, min(default, last)), last + 1
    ):  # the entry before has a number, so it is at most `last`
        if found != interval and fits(interval):
            between = {f"{number}.compact" for number in compact if last - interval < number < last}
            return (present - between) | {f"{last - interval}.compact"}
    return present


def guessed(last: int, default: int) -> int:
    """Return the interval that Spark takes if `last` is the only compact entry (`deriveCompactInterval`)."""
    count = last + 1
    if count <= default or default >= count // 2:
        return count
    return next((n for n in range(default, count // 2 + 1) if count % n == 0), count)
