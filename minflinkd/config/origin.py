"""Where a value of a configuration was set."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Layer(StrEnum):
    """What sets options. A later one wins over an earlier one."""

    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command-line"


@dataclass(frozen=True, slots=True)
class Origin:
    """`place`: the file and the line, such as `minflinkd.yaml:12`, or the variable; empty on the command line.

    `entry`: of a map; empty for any other option.
    """

    layer: Layer
    place: str = ""
    entry: str = ""

    def __str__(self) -> str:
        match self.layer:
            case Layer.FILE:
                return self.place
            case Layer.ENVIRONMENT:
                return f"environment variable {self.place}" if self.place else "environment"
            case Layer.COMMAND_LINE:
                return "command line"
