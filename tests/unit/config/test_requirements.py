"""docs/requirements.md has a rule for every requirement code that the code and the tests cite, and no other."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "requirements.md"
FOLDERS = ("minflinkd", "plugins", "tests", "docs", "benchmarks", "examples")

# A capital letter and a number, with a letter for a sub-code; or a message of the protocol. S3 is the storage.
CODE = r"(?!S3\b)(?:[A-Z][0-9]{1,2}[a-z]?|m[0-9]{1,2})"
SEPARATOR = r"(?:[,;:]\s|\s-\s)"

# Brackets after a blank. A piece of their content is a code, or the name of a page and a code.
BRACKETS = re.compile(r"(?<![^\s*])\(([^()]*)\)")
PIECE = re.compile(rf"(?:[\w-]+\.md\s)?({CODE})")
BEGINNING = re.compile(rf"({CODE}(?:{SEPARATOR}{CODE})*)(?=[.,:]|$)")
ROW = re.compile(r"^\| (\S+) \| \S.* \|$", re.MULTILINE)

_BETWEEN = {tokenize.NL, tokenize.COMMENT}
_STATEMENT_BEFORE = {tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def cited_in(text: str) -> set[str]:
    """Return the codes in brackets in `text`: `(C27)`, `(H3, H4)`, `(R10 - R15)`, `(J4: all faults)`.

    Of a range, only both ends.
    """
    pieces = (piece for inner in BRACKETS.findall(text) for piece in re.split(SEPARATOR, inner))
    return {found[1] for piece in pieces if (found := PIECE.fullmatch(piece.strip()))}


def cited_by(remark: str) -> set[str]:
    """Return the codes that a docstring or comment cites: those in brackets, and those that it begins with."""
    beginning = BEGINNING.match(remark)
    return cited_in(remark) | (set(re.split(SEPARATOR, beginning[1])) if beginning else set())


def remarks(source: str) -> Iterator[str]:
    """Yield the docstrings and comments of a module. Comments on successive lines are one remark."""
    before, comment, line = tokenize.ENCODING, "", 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("#").strip()
            if comment and token.start[0] == line + 1 and not token.line[: token.start[1]].strip():
                comment += f" {text}"
            else:
                yield comment
                comment = text
            line = token.start[0]
        elif token.type == tokenize.STRING and before in _STATEMENT_BEFORE:
            yield ast.literal_eval(token.string).strip()
        if token.type not in _BETWEEN:
            before = token.type
    yield comment


def citations(files: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    for path in files:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            yield from ((code, path) for code in cited_in(text))
        else:
            yield from ((code, path) for remark in remarks(text) for code in cited_by(remark))


@cache
def cited() -> dict[str, str]:
    """Return every code that is cited anywhere, with a file that cites it."""
    files = [path for folder in FOLDERS for path in sorted((REPOSITORY / folder).rglob("*.*"))]
    sources = [path for path in files if path.suffix in (".py", ".md") and path not in (PAGE, Path(__file__))]
    return {code: str(path.relative_to(REPOSITORY)) for code, path in citations(sources)}


def rows() -> list[str]:
    """Return the codes of the page, without the heads of its tables."""
    return [code for code in ROW.findall(PAGE.read_text(encoding="utf-8")) if code != "code"]


def test_every_requirement_that_is_cited_has_a_rule() -> None:
    """To repair: give the code a row in docs/requirements.md, or correct the citation."""
    missing = {code: path for code, path in cited().items() if code not in rows()}
    assert not missing, "docs/requirements.md has no row for " + ", ".join(f"{c} ({p})" for c, p in missing.items())


def test_every_rule_is_cited_and_is_there_once() -> None:
    """To repair: remove the row from docs/requirements.md, or cite the code in a test that shows the rule."""
    assert [code for code in rows() if code not in cited()] == []
    assert sorted({code for code in rows() if rows().count(code) > 1}) == []


def test_every_rule_is_below_the_heading_of_its_letter_in_order() -> None:
    """A reader finds a code by its letter, then by its number."""
    letters = re.findall(r"^## (\w): ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    def place(code: str) -> tuple[int, int, str]:
        number = re.search(r"\d+", code)
        assert number is not None
        return letters.index(code[0]), int(number[0]), code

    assert rows() == sorted(rows(), key=place)


@pytest.mark.parametrize(
    ("remark", "codes"),
    [
        ("It ends (X27).", {"X27"}),
        ("It ends (X3, X4a), and stays (m1 - m13).", {"X3", "X4a", "m1", "m13"}),
        ("After a kill nothing is left (X1,\n    X2).", {"X1", "X2"}),
        (
            "Seconds (seconds; X16). All at once (X4: all faults). A page (resources.md X10 - X15).",
            {"X16", "X4", "X10", "X15"},
        ),
        ("X7: it ends.", {"X7"}),
        ("X7, X8.", {"X7", "X8"}),
        ("X7 - X9", {"X7", "X9"}),
        ("m4, carrying more.", {"m4"}),
        ("S3, and stores like it (S3, GCS); f(X1); code compiled by C2 (fewer with X9).", set()),
        ("Classes (X1Reader, JobX1), statuses (404), lint rules (N802), ids (0x1F, X123).", set()),
    ],
)
def test_what_counts_as_a_citation(remark: str, codes: set[str]) -> None:
    """Codes in brackets and at the beginning, and nothing that only looks like a code."""
    assert cited_by(remark) == codes


def test_only_docstrings_and_comments_cite() -> None:
    """Data and names may look like codes."""
    source = '''"""A module (X1)."""
X2 = "(X3)"  # of data (X4,
# X5)


class Y:
    """X6: a class."""

    x: int = f(X7)
    """A field (X8)."""
    # X9
'''
    found = {code for remark in remarks(source) for code in cited_by(remark)}
    assert found == {"X1", "X4", "X5", "X6", "X8", "X9"}
