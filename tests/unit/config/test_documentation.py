"""docs/: errors.md names every error code that the programs can answer with, and no other; links lead somewhere; the
command line and the job files that are shown are the real ones.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from minflinkd.cli.main import main
from minflinkd.jobgraph.document import parse_yaml

REPOSITORY = Path(__file__).parents[3]
EXAMPLES = REPOSITORY / "examples"
ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (.+) \| (.+) \|$", re.MULTILINE)


@cache
def modules() -> dict[Path, ast.Module]:
    """The sources are read, not imported: those of the session child need Spark."""
    files = sorted((REPOSITORY / "minflinkd").rglob("*.py")) + sorted((REPOSITORY / "plugins").rglob("*.py"))
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}


@cache
def constants() -> dict[str, str]:
    """Module-level texts by name, for codes that a name stands for."""
    return {
        target.id: statement.value.value
        for module in modules().values()
        for statement in module.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
        if isinstance(target, ast.Name)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    }


def text_of(value: ast.expr | None) -> str | None:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return constants().get(name)
        case _:
            return None


def codes_in(module: ast.Module) -> Iterator[str | None]:
    """Of the error classes (`code = ...`) and of errors that are made directly (`ErrorInfo(code=...)`)."""
    for node in ast.walk(module):
        match node:
            case ast.ClassDef():
                for statement in node.body:
                    match statement:
                        case ast.Assign(targets=[ast.Name(id="code")], value=value):
                            yield text_of(value)
                        case ast.AnnAssign(target=ast.Name(id="code"), value=ast.Constant() as value):
                            yield text_of(value)
            case ast.Call(func=ast.Name(id="ErrorInfo"), keywords=keywords):
                yield from (text_of(keyword.value) for keyword in keywords if keyword.arg == "code")


def used_codes() -> dict[str, str]:
    """Every code with a file that uses it."""
    found: dict[str, str] = {}
    for path, module in modules().items():
        for code in codes_in(module):
            if code is not None:
                found.setdefault(code, str(path.relative_to(REPOSITORY)))
    return found


def documented_codes() -> list[str]:
    text = (REPOSITORY / "docs" / "errors.md").read_text(encoding="utf-8")
    return [row[1] for row in ROW.finditer(text)]


def test_every_error_code_is_documented_with_what_to_do() -> None:
    """E3: a stable code, and what to do. Mend: give the code a row in docs/errors.md"""
    missing = {code: path for code, path in used_codes().items() if code not in documented_codes()}
    assert not missing, "docs/errors.md has no row for " + ", ".join(
        f"`{code}` ({path})" for code, path in missing.items()
    )


def test_no_code_is_documented_that_does_not_exist_or_twice() -> None:
    """E3: the page is what the programs do. Mend: remove the row from docs/errors.md"""
    documented = documented_codes()
    assert sorted(set(documented) - set(used_codes())) == []
    assert sorted(code for code in set(documented) if documented.count(code) > 1) == []


def test_codes_are_written_in_kebab_case() -> None:
    """E3: stable codes of one form, for programs to compare."""
    assert [code for code in used_codes() if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", code)] == []


LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def pages() -> list[Path]:
    """What people read: the documentation, and the pages at the top and beside the examples."""
    return [*sorted((REPOSITORY / "docs").glob("*.md")), *sorted(REPOSITORY.glob("*.md")), *EXAMPLES.rglob("*.md")]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def test_links_in_the_documentation_lead_somewhere() -> None:
    """Every relative link names a file that exists, and a heading in it."""
    dead = [
        f"{page.relative_to(REPOSITORY)}: {link}"
        for page in pages()
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link and not leads_somewhere(page, link)
    ]
    assert dead == []


def test_the_index_names_every_page() -> None:
    """Mend: give the page a row in docs/README.md"""
    index = LINK.findall((REPOSITORY / "docs" / "README.md").read_text(encoding="utf-8"))
    assert sorted({page.name for page in (REPOSITORY / "docs").glob("*.md")} - {*index, "README.md"}) == []


def test_every_command_and_option_of_the_command_line_is_documented() -> None:
    """E10: docs/cli.md is what `minflinkd --help` shows. Mend: add what is missing to docs/cli.md"""
    page = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    context = click.Context(main)
    missing = []
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        if not re.search(rf"^\| `{name}\b", page, re.MULTILINE):
            missing.append(name)
        options = [max(p.opts, key=len) for p in command.params if isinstance(p, click.Option)]
        missing += [f"{name} {option}" for option in options if option not in page]
    assert missing == []


@pytest.mark.parametrize("name", ["README.md", "docs/jobs.md"])
def test_job_files_in_the_documentation_are_sound(name: str) -> None:
    """J1: what a reader copies is accepted."""
    page = (REPOSITORY / name).read_text(encoding="utf-8")
    jobs = [text for text in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "vertices:" in text]
    assert jobs
    for text in jobs:
        assert parse_yaml(text.encode()).job().vertices
