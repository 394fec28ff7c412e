"""What is wrong with a job, reported all at once (J4): every fault with its place in the document.

Covers how faults are written, collected and located in a document, but not how they are found.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.secrets import without_credentials

if TYPE_CHECKING:
    from minflinkd.jobgraph.model import JobGraph

DOCUMENT = "job"  # the path of the document as a whole

MOST = 100  # faults that are listed
MOST_GUESSES = 2000  # in a document
_NAMED = 20  # known words that a hint lists
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SHOWN = 80  # characters shown of a wrong value


class GraphFault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a submission (J4): where in the document, what is wrong, what would be right."""

    path: str  # `vertices.delays.inputs[0]`; a vertex is named by its id even if the document has a list
    problem: str
    hint: str = ""
    traceback: str = ""  # of user code or of Spark
    line: int | None = None  # in the job file, if there is one; the first is 1
    code: str | None = None  # if it is one of the errors of docs/errors.md

    def __str__(self) -> str:
        place = f"line {self.line}, {self.path}" if self.line else self.path
        return f"{place}: {self.problem}" + (f" ({self.hint})" if self.hint else "")


class InvalidJobGraph(MinflinkError):
    """A job that is refused before anything of it has started, with every fault that was found.

    `sound`: the part of the job without faults, if there is one. Spark may find more faults in it.
    """

    code = "invalid-job-graph"
    consequence = Consequence.REFUSED

    def __init__(self, faults: Iterable[GraphFault], sound: JobGraph | None = None) -> None:
        self.faults = tuple(faults)
        self.sound = sound
        count = f"{len(self.faults)} faults" if len(self.faults) != 1 else "1 fault"
        text = "\n  ".join([f"the job has {count}:", *map(str, self.faults)])
        super().__init__(text)
        self.message = text  # in full: the number of faults is bounded


class Faults:
    """The faults found so far, in the order in which they were found. After the first `MOST`, they are only counted."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], GraphFault] = {}
        self._faulty: set[str] = set()  # the paths of all faults, and what is above them
        self._more = 0
        self._guesses = 0

    @property
    def full(self) -> bool:
        """Whether further faults are only counted. Then it is not worth looking for hints."""
        return len(self._found) >= MOST

    @property
    def found(self) -> tuple[GraphFault, ...]:
        return tuple(self._found.values())

    def may_guess(self) -> bool:
        """Whether to look for what one more word stands for. That takes time, and a document may have many words."""
        self._guesses += 1
        return self._guesses <= MOST_GUESSES

    def add(self, path: str, problem: str, hint: str | Callable[[], str] = "", code: str | None = None) -> None:
        """Note a fault. A `hint` that takes time to make is given as a function."""
        self._faulty.add(path)
        self._faulty.update(path[:end] for end, letter in enumerate(path) if letter in ".[")
        if (path, problem) in self._found:
            return
        if self.full:
            self._more += 1
            return
        hint = hint if isinstance(hint, str) else hint()
        self._found[path, problem] = GraphFault(path=path, problem=problem, hint=hint, code=code)

    def touch(self, path: str) -> bool:
        """Whether `path` or something below it is faulty, so that a rule does not complain about a consequence."""
        return path in self._faulty

    def raise_if_any(
        self, positions: Mapping[str, int] | None = None, sound: Callable[[], JobGraph] | None = None
    ) -> None:
        """Raises InvalidJobGraph."""
        if not self._found:
            return
        listed = located(self._found.values(), positions or {})
        if self._more:
            more = GraphFault(
                path=DOCUMENT, problem=f"{self._more:,} more faults", hint="correct the listed ones first"
            )
            listed = (*listed, more)
        raise InvalidJobGraph(listed, sound() if sound else None)


def at(path: str, key: str | int) -> str:
    """Return the path of an entry: `a.b`, `a[0]`, `a["spark.sql.x"]`. Top-level entries have no prefix."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    if not _PLAIN_KEY.fullmatch(key):
        return f"{'' if path == DOCUMENT else path}[{show(key)}]"
    return key if path == DOCUMENT else f"{path}.{key}"


def vertex_path(vertex_id: str) -> str:
    return at("vertices", vertex_id)


def located(faults: Iterable[GraphFault], positions: Mapping[str, int]) -> tuple[GraphFault, ...]:
    """Return the faults with the lines of their paths, sorted by line.

    Something missing has the line of what it is missing from.
    """
    if not positions:
        return tuple(faults)
    found = (msgspec.structs.replace(fault, line=_line(fault.path, positions)) for fault in faults)
    return tuple(sorted(found, key=lambda fault: fault.line or 0))


def _line(path: str, positions: Mapping[str, int]) -> int | None:
    while path not in positions:
        cut = max(path.rfind("."), path.rfind("["))
        if cut <= 0:
            return positions.get(DOCUMENT)
        path = path[:cut]
    return positions[path]


def show(value: object) -> str:
    """Return a wrong value as an error shows it: quoted, on one line, never long."""
    if isinstance(value, str):
        value = without_credentials(value) if "://" in value else value
        quoted = ascii(value) if any(0xD800 <= ord(c) < 0xE000 for c in value[:_SHOWN]) else repr(value)
        text = f'"{quoted[1:-1]}"' if '"' not in value else quoted
    elif isinstance(value, Mapping):
        text = "a mapping"
    elif isinstance(value, list | tuple):
        text = "a list"
    elif value is None or isinstance(value, bool):
        text = {None: "nothing", True: "true", False: "false"}[value]
    elif isinstance(value, int) and value.bit_length() > 256:
        text = "a number of more than 77 digits"
    else:
        text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known word that `word` most likely stands for. Case and the kind of dash do not matter."""
    names = {name.lower().replace("_", "-"): name for name in sorted(known)}
    close = difflib.get_close_matches(word.lower().replace("_", "-")[:_SHOWN], names, n=1, cutoff=cutoff)
    return names[close[0]] if close else None


def meant(word: str, known: Iterable[str], what: str = "known here") -> str:
    """Return a hint for an unknown word: the nearest known one, or the first of them."""
    names = sorted(known)
    close = nearest(word, names)
    if close is not None:
        return f"did you mean {close}?"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{what}: {', '.join(names[:_NAMED])}{more}" if names else ""
