"""What to know of Spark's frames: how a column is named exactly, and how a micro-batch can be kept."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

# Spark cannot read a persisted micro-batch whose rows are sorted, as those of max() over texts are: it looks for the
# column that they are sorted by, and the frame of a micro-batch has columns of its own ("key not found: key#70").
# After `coalesce` it does not count as sorted. More partitions than there are: they stay as they are.
ALL_PARTITIONS: Final = 2**31 - 1


def quoted(name: str) -> str:
    """Return a name as it is written in SQL. Without quotes, a name with a dot is a part of a struct."""
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Column:
    return F.col(quoted(name))
