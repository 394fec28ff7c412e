"""Sinks whose rows are changes of a table, such as those of a database's log: which is the newest, what is deleted.

    options: {key: id, newest-by: offset, deleted: is_deleted}

What `newest-by` and `deleted` name is not written to the table. Pure.
"""

from __future__ import annotations

from typing import Final

from minflinkd.jobgraph.delivery import DELETED, KEY, KEYED_FORMATS, NEWEST_BY, key_of, names_in
from minflinkd.jobgraph.faults import Faults, at, show
from minflinkd.jobgraph.formats import FILE_FORMATS
from minflinkd.jobgraph.model import Sink, Struct

_EXAMPLES: Final = {NEWEST_BY: "offset", DELETED: "is_deleted"}


class ChangeColumns(Struct, frozen=True):
    """The columns of a sink by which rows replace each other.

    `newest_by`: of several rows with one key in a micro-batch, that with the greatest values counts; without any
    column, any of them. `deleted`: whether a row says that the one with its key is gone.
    """

    key: tuple[str, ...]
    newest_by: tuple[str, ...] = ()
    deleted: str | None = None

    @property
    def unwritten(self) -> tuple[str, ...]:
        """The columns that only say what to do, and are not the table's."""
        return self.newest_by if self.deleted is None else (*self.newest_by, self.deleted)


def change_columns(sink: Sink) -> ChangeColumns | None:
    """Return the columns by which the rows of a sink replace each other; None if they do not."""
    if not (key := key_of(sink)):
        return None
    deleted = sink.options.get(DELETED, "").strip() or None
    return ChangeColumns(key=key, newest_by=names_in(sink.options.get(NEWEST_BY, "")), deleted=deleted)


def check_changes(sink: Sink, path: str, faults: Faults) -> None:
    """Check the options of a sink that say what its rows change."""
    given = [name for name in (NEWEST_BY, DELETED) if name in sink.options]
    if not given:
        return
    options = at(path, "options")
    if sink.format in (*FILE_FORMATS, "kafka"):
        problem = f"a {sink.format} sink only adds rows"
        faults.add(at(options, given[0]), problem, f"a {', '.join(KEYED_FORMATS)} sink with a key changes them")
    if sink.format not in KEYED_FORMATS:
        return
    changes = change_columns(sink)
    if changes is None:
        if KEY not in sink.options:
            problem = "only a sink with a key knows which rows are of one thing"
            faults.add(at(options, given[0]), problem, "options: {key: <the columns that a row is known by>}")
        return
    for name in given:
        if not names_in(sink.options[name]):
            faults.add(at(options, name), "it names no column", f"{name}: {_EXAMPLES[name]}")
    if "," in sink.options.get(DELETED, ""):
        faults.add(at(options, DELETED), "it names several columns", f"one boolean column: {_EXAMPLES[DELETED]}")
    if changes.deleted is not None and NEWEST_BY not in sink.options:
        problem = "of several changes of one row in a micro-batch, nobody would know which is the last"
        faults.add(at(options, DELETED), f"{DELETED} needs {NEWEST_BY}, too: {problem}", f"{NEWEST_BY}: offset")
    if changes.deleted in changes.newest_by:
        faults.add(at(options, DELETED), f"{show(changes.deleted)} is in {NEWEST_BY}, too", "name two columns")
    for name in changes.unwritten:
        other = KEY if name in changes.key else "partition-by" if name in sink.partition_by else None
        if other is not None:
            where = DELETED if name == changes.deleted else NEWEST_BY
            problem = f"{show(name)} is in {other}, too, and columns of {where} are not written"
            faults.add(at(options, where), problem, "select the column twice, with two names")
