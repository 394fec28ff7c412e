"""Decisions read the consequence and the kind of an error, never its code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.config.test_documentation import REPOSITORY, modules, used_codes

WHERE_ERRORS_ARE_DEFINED = "minflinkd/runtime/errors.py"  # it finds the class that the other party raised


@cache
def codes_of_several_words() -> frozenset[str]:
    """Return the codes that can mean nothing else; a single word, such as `storage`, may."""
    return frozenset(code for code in used_codes() if "-" in code)


def is_code(node: ast.AST) -> bool:
    """Whether it is `error.code`, `Fenced.code` and the like, or a local variable of that name."""
    return (isinstance(node, ast.Attribute) and node.attr == "code") or (
        isinstance(node, ast.Name) and node.id == "code"
    )


def decisions_by_code(module: ast.Module) -> Iterator[int]:
    """Yield the lines in which something depends on a code."""
    for node in ast.walk(module):
        match node:
            case ast.Compare(left=left, comparators=others) if any(map(is_code, (left, *others))):
                yield node.lineno
            case ast.Call(func=ast.Attribute(value=value, attr="startswith" | "endswith" | "partition" | "split")):
                if is_code(value):
                    yield node.lineno
            case ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[key, *_]) if is_code(key):
                yield node.lineno
            case ast.Subscript(slice=key) if is_code(key):
                yield node.lineno
            case ast.Match(subject=subject) if is_code(subject):
                yield node.lineno
            case ast.MatchClass(kwd_attrs=names) if "code" in names:
                yield node.lineno


def copies_of_codes(module: ast.Module) -> Iterator[int]:
    """Yield the lines with a code that does not belong to the definition of an error."""
    definitions: set[int] = set()
    for node in ast.walk(module):
        match node:
            case ast.keyword(arg="code", value=value) | ast.Assign(targets=[ast.Name(id="code")], value=value):
                definitions.add(id(value))
            case ast.ClassDef(bases=[ast.Name(id="StrEnum")], body=body):  # words for something else
                definitions.update(id(each.value) for each in body if isinstance(each, ast.Assign))
    for node in ast.walk(module):
        match node:
            case ast.Constant(value=str(text)) if text in codes_of_several_words() and id(node) not in definitions:
                yield node.lineno


def places(path: Path, lines: Iterator[int]) -> list[str]:
    name = str(path.relative_to(REPOSITORY))
    servers_codes = name.startswith("plugins/")  # plugins read the codes of S3 and Azure
    return [] if servers_codes or name == WHERE_ERRORS_ARE_DEFINED else [f"{name}:{line}" for line in lines]


def test_nothing_is_decided_by_the_code_of_an_error() -> None:
    """Read `consequence` or `kind`, which the error has from where it is raised. A new code is then never forgotten."""
    found = [place for path, module in modules().items() for place in places(path, decisions_by_code(module))]
    assert not found, "these compare codes: " + ", ".join(found)


def test_a_code_is_written_only_where_its_error_is_defined() -> None:
    """A copy elsewhere could only be there for a comparison, or would have to be changed with the original."""
    found = [place for path, module in modules().items() for place in places(path, copies_of_codes(module))]
    assert not found, "these copy codes: " + ", ".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "error.code == 'session-lost'",
        "Fenced.code != error.info().code",
        "error.code in ('user-code', 'spark-query')",
        "code = error.code; lost = code == LOST",
        "error.code.startswith('storage')",
        "STATUS[info.code]",
        "STATUS.get(info.code, 500)",
        "match error.code:\n    case _: pass",
        "match error:\n    case ErrorInfo(code='internal'): pass",
    ],
)
def test_a_comparison_of_codes_is_found(line: str) -> None:
    assert list(decisions_by_code(ast.parse(line)))


def test_a_copied_code_is_found() -> None:
    assert list(copies_of_codes(ast.parse("LOST = 'session-lost'")))
    assert not list(
        copies_of_codes(ast.parse("ErrorInfo(code='session-lost')\nclass Lost:\n    code = 'session-lost'"))
    )
