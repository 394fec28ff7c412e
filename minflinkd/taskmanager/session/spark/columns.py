"""Columns by their exact names, as Spark takes a name with a dot in it for a part of a struct; and their partitions."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

# Spark cannot read a persisted micro-batch whose rows are sorted, as those of max() over texts are: it looks for the
# column that they are sorted by, and the frame of a micro-batch has columns of its own ("key not found: key#70").
# After `coalesce` it does not count as sorted. More partitions than there are: they stay as they are.
ALL_PARTITIONS: Final = 2**31 - 1


def quoted(name: str) -> str:
    """Return a name as it is written in SQL."""
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Column:
    return F.col(quoted(name))
