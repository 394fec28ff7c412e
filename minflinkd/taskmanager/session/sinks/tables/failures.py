"""What can go wrong with a table, and how a library's words about it are shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.taskmanager.session.spark.failures import hidden

THERE: Final = "are the storage and the catalog there, and may this user read and write them?"
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m|↳")


class TableFailed(MinflinkError):
    """The table, its catalog or its storage did not do what the sink asked for. The rows stay staged."""

    code = "sink-table"
    consequence = Consequence.RETRYABLE


class TableChanged(MinflinkError):
    """The table is not the one for which rows were staged, or their files are gone. They cannot be committed."""

    code = "sink-table-changed"
    consequence = Consequence.FATAL


class Conflict(Exception):
    """Somebody else has changed the table meanwhile: look again, and repeat the commit."""


def said(error: BaseException) -> str:
    """Return a library's message in one line, without colours and secrets."""
    return hidden(" ".join(_COLOURS.sub("", str(error)).split())[:500]) or type(error).__name__


@contextmanager
def failing(table: str, what: str) -> Iterator[None]:
    """Raise TableFailed for whatever a library, a catalog or a storage raises. `table`: its name. `what`: it did."""
    try:
        yield
    except (MinflinkError, PySparkException, Py4JError):
        raise
    except Exception as error:  # the clients of catalogs and storages have no error in common
        raise TableFailed(f"{table} {what}: {said(error)}", hint=THERE) from error
