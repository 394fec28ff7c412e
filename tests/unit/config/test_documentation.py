"""The documentation matches the programs.

errors.md names every error code that the programs can answer with, and no other. Links lead somewhere. The command
line, the metrics and the job files that are shown are the real ones.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from minflinkd.cli.main import main
from minflinkd.jobgraph.document import parse_yaml
from minflinkd.metrics.loop_lag import LoopLag
from minflinkd.metrics.refusals import RefusalCollector
from minflinkd.metrics.registry import Metrics
from minflinkd.metrics.rpc import Pending, RpcFigures
from minflinkd.metrics.samples import (
    AutoscalerSample,
    BlobSample,
    CheckpointSample,
    ClusterSample,
    JobSample,
    JvmSample,
    RepeatedSample,
    TaskSample,
)
from minflinkd.rest.openapi.__main__ import all_routes
from minflinkd.rest.openapi.document import document
from minflinkd.rest.openapi.page import with_paths
from minflinkd.runtime.clock import SystemClock
from minflinkd.storage.recording import RequestStatistics

REPOSITORY = Path(__file__).parents[3]
EXAMPLES = REPOSITORY / "examples"
ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (.+) \| (.+) \|$", re.MULTILINE)


@cache
def modules() -> dict[Path, ast.Module]:
    """Read the sources without importing them, because those of the session child need Spark."""
    files = sorted((REPOSITORY / "minflinkd").rglob("*.py")) + sorted((REPOSITORY / "plugins").rglob("*.py"))
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}


@cache
def constants() -> dict[str, str]:
    """Return module-level strings by name, for codes that are given by name."""
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
    """Yield the codes of error classes (`code = ...`), and of errors and faults that are made directly."""
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
            case ast.Call(func=ast.Name(id="GraphFault"), keywords=keywords):  # the others repeat the code of an error
                made = (keyword.value for keyword in keywords if keyword.arg == "code")
                yield from (text_of(value) for value in made if isinstance(value, ast.Constant))


def used_codes() -> dict[str, str]:
    """Return every code with a file that uses it."""
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
    """A code is stable and comes with a next step (E3). To repair: give the code a row in docs/errors.md."""
    missing = {code: path for code, path in used_codes().items() if code not in documented_codes()}
    assert not missing, "docs/errors.md has no row for " + ", ".join(
        f"`{code}` ({path})" for code, path in missing.items()
    )


def test_no_code_is_documented_that_does_not_exist_or_twice() -> None:
    """The page matches the programs (E3). To repair: remove the row from docs/errors.md."""
    documented = documented_codes()
    assert sorted(set(documented) - set(used_codes())) == []
    assert sorted(code for code in set(documented) if documented.count(code) > 1) == []


def test_codes_are_written_in_kebab_case() -> None:
    """Codes have one form, so programs can compare them (E3)."""
    assert [code for code in used_codes() if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", code)] == []


OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][a-z-]*")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def pages() -> list[Path]:
    """Return the pages for people: the documentation, and the pages at the top and next to the examples."""
    return [*sorted((REPOSITORY / "docs").rglob("*.md")), *sorted(REPOSITORY.glob("*.md")), *EXAMPLES.rglob("*.md")]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes from headings."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


def test_links_in_the_documentation_lead_somewhere() -> None:
    """Every relative link names an existing file, and an existing heading in it."""
    dead = [
        f"{page.relative_to(REPOSITORY)}: {link}"
        for page in pages()
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in link and not leads_somewhere(page, link)
    ]
    assert dead == []


@pytest.mark.parametrize("directory", ["docs", "docs/decisions"])
def test_the_index_names_every_page(directory: str) -> None:
    """To repair: give the page a row in the README.md of its directory."""
    pages = {page.name for page in (REPOSITORY / directory).glob("*.md")}
    index = LINK.findall((REPOSITORY / directory / "README.md").read_text(encoding="utf-8"))
    assert sorted(pages - {*index, "README.md"}) == []


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield all commands that can be called, including groups, with their names."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield prefix + name, command
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")


def test_every_command_and_option_of_the_command_line_is_documented() -> None:
    """docs/cli.md matches `minflinkd --help` (E10). To repair: correct docs/cli.md.

    Every option is in the row of its command, or in the text if all commands have it. A row names no other option.
    """
    page = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    text = re.sub(r"^\|.*\n", "", page, flags=re.MULTILINE)
    wrong = []
    for name, command in commands(main):
        rows = re.findall(rf"^\| `{name}\b.*$", page, re.MULTILINE)
        options = {o for p in command.params if isinstance(p, click.Option) for o in (*p.opts, *p.secondary_opts)}
        usage = OPTION.findall("\n".join(row.partition(" | ")[0] for row in rows))
        wrong += [f"{name}: not in the page"] * (not rows)
        wrong += [f"{name} {option}: not in the page" for option in options - {*OPTION.findall(text), *usage}]
        if not isinstance(command, click.Group):
            wrong += [f"{name} {option}: not in the program" for option in {*usage} - options]
    assert wrong == []


def a_whole_cluster() -> ClusterSample:
    """Return a sample in which no metric is left out."""
    task = TaskSample(
        task_id="out",
        rows_in=1,
        rows_out=1,
        batch_duration=0.1,
        state_rows=1,
        state_bytes=1,
        watermark=1.0,
        offsets={("flights", "flights.0"): 17.0},
        pending={("flights", "flights.0"): 3},
        pending_records={"flights": 3},
        bad_records={"flights": 1},
        compacted_files={"out": 1},
        failed_compactions={"out": 1},
        latencies={"0.5": 0.001},
        latency_buckets=(("0.001", 1), ("+Inf", 2)),
        latency_sum=0.01,
        cut_pause=0.05,
    )
    checkpoints = CheckpointSample(
        failed=1,
        failed_by_cause={"expired": 1},
        refused={"too-soon": 1},
        durations={"0.5": 1.0},
        last_completed=1.0,
        verified=1.0,
        calls={"list": (1, 0.1)},
    )
    blobs = BlobSample(
        stored={"referenced": 1},
        stored_bytes={"referenced": 1},
        received_bytes=1,
        sent_bytes=1,
        transfers_running=0,
        transfers_waiting=0,
        deleted=0,
        corrupt=0,
    )
    return ClusterSample(
        jobs_by_status={"RUNNING": 1},
        jobs=(
            JobSample(
                job_id="a" * 32,
                restarts=0,
                running_since=1.0,
                repeated=RepeatedSample(failures=3, task="out", task_manager="tm-0123456789ab"),
                hot_restarts={"completed": 1},
                hot_restart_phases={"running": 0.3},
                tasks=(task,),
                checkpoints=checkpoints,
                autoscaler=AutoscalerSample(
                    slots={"default": 2},
                    wanted={"default": 1.5},
                    utilization={"default": 0.5},
                    changes={"up": 1},
                    limited=False,
                ),
            ),
        ),
        task_managers=1,
        heartbeat_ages={"tm-0123456789ab": 1.0},
        disks={"tm-0123456789ab": (1.0, 2.0)},
        jvms={
            "tm-0123456789ab": JvmSample(
                heap_used=1.0, heap_max=2.0, non_heap_used=1.0, collections={"G1": (1.0, 0.1)}, gc_share=0.01
            )
        },
        memory={"tm-0123456789ab": {"jvm": 2.0}},
        blobs=blobs,
    )


def used_rpc() -> RpcFigures:
    figures = RpcFigures()
    figures.asking("Heartbeat")
    figures.ended("Heartbeat", "ok", 0.01)
    figures.fenced["Heartbeat"] = figures.unreadable["Heartbeat"] = 1
    figures.mailboxes["dispatcher"] = Pending()
    return figures


def metrics_and_labels() -> tuple[set[str], set[str]]:
    """Return the names of all metrics of the daemon, without `minflinkd_`, and the names of their labels."""
    metrics = Metrics(
        version="1",
        rpc=used_rpc(),
        storage_requests=lambda: {"file": {"stat": RequestStatistics()}},
    )
    metrics.cluster.show(a_whole_cluster())
    LoopLag(metrics.registry, SystemClock())
    refusals = RefusalCollector()
    refusals.counts["wrong-token"] = 1
    metrics.registry.register(refusals)
    names, labels = set[str](), set[str]()
    for family in metrics.registry.collect():
        for sample in family.samples:
            name = family.name if family.type == "histogram" else sample.name
            if name.startswith("minflinkd_"):
                names.add(name.removeprefix("minflinkd_"))
                labels.update(sample.labels)
    return names, labels


def test_every_metric_is_documented_with_its_labels_and_no_other() -> None:
    """docs/http.md matches `GET /metrics` (E30). To repair: correct its section on metrics."""
    names, labels = metrics_and_labels()
    page = (REPOSITORY / "docs" / "http.md").read_text(encoding="utf-8")
    section = page.partition("## Metrics\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([a-z_]+)`", section)) - {"minflinkd_"} == names | labels - {"le"}


def test_the_page_of_the_endpoint_lists_its_paths_as_they_are() -> None:
    """docs/http.md says what the routes say (E5). To repair: `python -m minflinkd.rest.openapi docs/http.md`."""
    page = (REPOSITORY / "docs" / "http.md").read_text(encoding="utf-8")
    assert with_paths(page, all_routes()) == page


def test_links_from_the_list_of_paths_lead_to_pages_and_not_into_the_description_for_programs() -> None:
    """Readers of `/openapi.json` have no docs/ beside it (E5)."""
    routes = all_routes()
    linked = [each for each in routes if "](" in each.more]
    assert linked
    text = json.dumps(document(routes, "1")["paths"])
    assert "](" not in text


@pytest.mark.parametrize("name", ["README.md", "docs/jobs.md", "docs/porting.md"])
def test_job_files_in_the_documentation_are_sound(name: str) -> None:
    """What a reader copies is accepted (J1)."""
    page = (REPOSITORY / name).read_text(encoding="utf-8")
    jobs = [text for text in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "vertices:" in text]
    assert jobs
    for text in jobs:
        assert parse_yaml(text.encode()).job().vertices


def test_the_scripts_and_jobs_of_the_porting_page_are_files_that_run() -> None:
    """What a reader copies is what tests/e2e/test_porting.py runs. Mend: copy the file into docs/porting.md"""
    page = (REPOSITORY / "docs" / "porting.md").read_text(encoding="utf-8")
    shown = re.findall(r"^<!-- (\S+) -->\n```\w+\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    files = [path for path in (EXAMPLES / "porting").iterdir() if path.suffix in (".py", ".yaml")]
    assert sorted(shown) == sorted((path.name, path.read_text(encoding="utf-8")) for path in files)
