"""What can go wrong with a table, and how a library's words about it are shown."""

from __future__ import annotations

import re
from typing import Final

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.taskmanager.session.spark.failures import hidden

THERE: Final = "is the storage there, and may this user read and write it?"
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
