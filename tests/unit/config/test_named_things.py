"""What texts name exists: options, commands with their flags, paths of the HTTP endpoint, metrics and files.

Texts are the documentation, and the comments, docstrings, messages and hints of the programs. To repair: correct the
text. If it names something of another program, say so in FOREIGN.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import click
import msgspec

from minflinkd.cli.main import main
from minflinkd.config.options import options
from minflinkd.jobgraph.model import Autoscaler, Checkpointing
from minflinkd.rest.openapi.__main__ import all_routes
from tests.unit.config.test_documentation import REPOSITORY, commands, metrics_and_labels, modules, pages

FOREIGN = {
    "project.entry-points",  # of pyproject.toml
    "dfs.namenode.fs-limits",  # of HDFS
    "src/flights.py",  # an example of a path in a job
    "build/benchmarks.md",  # what `make bench` writes
}

OPTION = re.compile(r"(?<![\w./:@{-])([a-z][a-z0-9-]*(?:\.[a-z][a-zA-Z0-9-]*)+)(?![\w/(-]|\.[A-Za-z])")
COMMAND = re.compile(r"`minflinkd ([^`\n]+)`|^(?: {4}| {6}|\$ | {4}\$ )minflinkd ([^#|\n]+)", re.MULTILINE)
ROUTE = re.compile(r"(?<![\w-])(GET|POST|PUT|PATCH|DELETE) (/[^\s`'\"),;?\[|]*)")
METRIC = re.compile(r"(?<![\w-])minflinkd_[a-z_]+")
FILE = re.compile(r"(?<![\w/.<*{-])((?:[\w-]+/)+[\w-]+\.(?:py|md|yaml|service))\b")
FILE_ENDINGS = ("json", "jar", "lock", "log", "md", "new", "pid", "py", "service", "sql", "toml", "yaml", "zip")


@cache
def texts() -> dict[str, str]:
    """Return every text by its path: pages, sources, units and the configuration file."""
    others = [*(REPOSITORY / "systemd").iterdir(), REPOSITORY / "config" / "minflinkd.yaml"]
    return {
        str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8") for path in (*pages(), *modules(), *others)
    }


def named(pattern: re.Pattern[str], *, in_pages: bool = False) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield what matches, with its place. `in_pages`: only in those for people."""
    for path, text in texts().items():
        if in_pages and not path.endswith(".md"):
            continue
        for match in pattern.finditer(text):
            if match[0] not in FOREIGN:
                yield f"{path}:{text.count(chr(10), 0, match.start()) + 1}", match


@cache
def options_of_plugins() -> set[str]:
    """Return the last parts of `storage.<scheme>.<option>` and `security.auth.<scheme>.<option>`."""
    return {
        statement.target.id.replace("_", "-")
        for module in modules().values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Options")
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


@cache
def option_keys() -> frozenset[str]:
    """Return the names of all options, and what a job file may say about checkpoints and its autoscaler."""
    of_jobs = {f"checkpointing.{field.encode_name}" for field in msgspec.structs.fields(Checkpointing)}
    of_jobs |= {f"autoscaler.{field.encode_name}" for field in msgspec.structs.fields(Autoscaler)}
    return frozenset(of_jobs.union(*((option.key, *option.aliases) for option in options())))


def is_option(name: str) -> bool:
    """Whether it is an option, or a whole part of the name of one."""
    if (name.startswith("storage.") and name.count(".") == 2) or name.startswith(
        ("security.auth.jwt.", "listeners.openlineage.")
    ):
        return name.rpartition(".")[2] in options_of_plugins()
    if name in ("security.auth.jwt", "listeners.openlineage"):
        return True
    return any(key == name or key.startswith(f"{name}.") for key in option_keys())


def looks_like_an_option(name: str, place: str) -> bool:
    """With a hyphen in its last part; or, in a page, with the first part of an option."""
    first, last = name.partition(".")[0], name.rpartition(".")[2]
    if last in FILE_ENDINGS or first in ("spark", "minflinkd", "s3") or (first == "storage" and name.count(".") < 2):
        return False  # a file, an option of a library, a field of an answer, a module or all options of a backend
    ours = {key.partition(".")[0] for key in option_keys()}
    return "-" in last or (first in ours and ".md:" in place)


def test_every_option_that_a_text_names_exists() -> None:
    found = ((place, match[1]) for place, match in named(OPTION))
    wrong = [f"{place}: {name}" for place, name in found if looks_like_an_option(name, place) and not is_option(name)]
    assert wrong == []


@cache
def program() -> dict[str, click.Command]:
    return dict(commands(main))


def flags(*of: click.Command) -> set[str]:
    return {"--help", "-h"}.union(*((*p.opts, *p.secondary_opts) for command in of for p in command.params))


def wrong_in(words: list[str]) -> str:
    """Say what is wrong with the words after `minflinkd`; "" if nothing is."""
    name, command = "", click.Command("minflinkd")
    for word in words:
        if word == "--":  # the rest is a script's
            break
        longer = f"{name} {word}".strip()
        if longer in program():
            name, command = longer, program()[longer]
        elif word.startswith("-") and word.partition("=")[0] not in flags(main, command):
            return f"{name} has no {word}"
        elif re.fullmatch(r"[a-z][a-z-]*", word) and (not name or type(command) is click.Group):
            return f"{name} has no command {word}"
    return ""


def test_every_command_that_a_text_shows_exists_with_its_flags() -> None:
    """In backticks, or in a line of its own."""
    wrong = []
    for place, match in named(COMMAND):
        words = [word.strip("[]()\"',.:;") for word in (match[1] or match[2]).split()]
        if problem := wrong_in([word for word in words if word]):
            wrong.append(f"{place}: {match[0].strip()}: {problem}")
    assert wrong == []


@cache
def routes() -> set[tuple[str, str]]:
    """Return the method and path of every route of the endpoint, the BlobServer and the exchanges."""
    of_endpoint = {(route.method, route.path) for route in all_routes()}
    return of_endpoint | {
        (node.func.attr.removeprefix("add_").upper(), str(node.args[0].value))
        for module in modules().values()
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
        if isinstance(node.args[0], ast.Constant) and str(node.args[0].value).startswith("/")
    }


def test_every_path_that_a_text_names_is_served() -> None:
    served = [(method, re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path))) for method, path in routes()]
    wrong = []
    for place, match in named(ROUTE):
        method, path = match[1], re.sub(r":\w+|\{[^}]*\}?|<\w+>", "x", match[2].rstrip(".:")).removeprefix("/v1") or "/"
        if not any(known == method and pattern.fullmatch(path) for known, pattern in served):
            wrong.append(f"{place}: {method} {match[2]}")
    assert wrong == []


def test_every_metric_that_a_page_names_exists() -> None:
    """A name that begins as metrics do may also be a table of a sink, or a package."""
    known = {f"minflinkd_{name}" for name in metrics_and_labels()[0]}
    others = "".join(text for path, text in texts().items() if path.endswith(".py") and "/metrics/" not in path)
    packages = {path.name for part in ("plugins", "examples") for path in (REPOSITORY / part).glob("*/*")}
    packages.add("minflinkd_client")  # a generator makes it of `/openapi.json`
    wrong = [
        f"{place}: {match[0]}"
        for place, match in named(METRIC, in_pages=True)
        if not {match[0], re.sub(r"_(bucket|count|sum)$", "", match[0])} & known
        if match[0] not in packages and f'"{match[0]}' not in others
    ]
    assert wrong == []


def test_every_file_of_the_tree_that_a_text_names_exists() -> None:
    """By any end of its path: `rest/guard.py` is enough."""
    tree = ("minflinkd", "plugins", "docs", "tests", "examples", "systemd", "config", "benchmarks", "deploy")
    files = [f"/{path.relative_to(REPOSITORY)}" for part in tree for path in (REPOSITORY / part).rglob("*.*")]
    wrong = [
        f"{place}: {match[1]}"
        for place, match in named(FILE)
        if not any(file.endswith(f"/{match[1]}") for file in files)
    ]
    assert wrong == []
