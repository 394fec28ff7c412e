"""What one commit changes in a table by key: rows to be there, and keys of rows to be gone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

GONE: Final = "minflinkd_gone"  # a column: whether the row with this key goes
_NUMBER: Final = "minflinkd_row"


@dataclass(frozen=True)
class KeyedChanges:
    """At most one change for each key. `rows`: they replace those with their keys. `gone`: the columns of the key."""

    rows: pa.Table
    gone: pa.Table

    @classmethod
    def of_rows(cls, rows: pa.Table, key: Sequence[str]) -> KeyedChanges:
        """Return changes that delete nothing."""
        return cls(rows, rows.select(list(key)).slice(0, 0))

    def keys(self, key: Sequence[str]) -> pa.Table:
        """Return all keys that change."""
        names = list(key)
        return pa.concat_tables([self.rows.select(names), self.gone.select(names)], promote_options="permissive")

    def together(self) -> pa.Table:
        """Return both in one table, with the column GONE. Where a row goes, it has NULL for all but its key."""
        marked = [marked_as(self.rows, gone=False), marked_as(self.gone, gone=True)]
        return pa.concat_tables(marked, promote_options="permissive")


def marked_as(rows: pa.Table, *, gone: bool) -> pa.Table:
    return rows.append_column(GONE, pa.repeat(pa.scalar(gone), len(rows)))


def last_of(marked: Sequence[pa.Table], key: Sequence[str]) -> KeyedChanges:
    """Return the last change of each key. `marked`: in their order, each with the column GONE."""
    last = last_by_key(pa.concat_tables(marked, promote_options="permissive"), key)
    is_gone = last.column(GONE)
    if not pc.any(is_gone).as_py():  # then the rows are not copied once more
        return KeyedChanges.of_rows(last.drop_columns([GONE]), key)
    rows = last.filter(pc.invert(is_gone)).drop_columns([GONE])
    return KeyedChanges(rows, last.filter(is_gone).select(list(key)))


def last_by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the last of the rows with each key, in the order of the rows."""
    numbered = rows.select(list(key)).append_column(_NUMBER, pa.array(range(len(rows)), pa.int64()))
    last = numbered.group_by(list(key)).aggregate([(_NUMBER, "max")]).column(f"{_NUMBER}_max")
    return rows.take(pa.array(sorted(last.to_pylist()), pa.int64()))
