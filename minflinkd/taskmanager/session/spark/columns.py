"""Columns by their exact names: Spark takes a name with a dot in it for a part of a struct."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it


def quoted(name: str) -> str:
    """Return a name as it is written in SQL."""
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Column:
    return F.col(quoted(name))
