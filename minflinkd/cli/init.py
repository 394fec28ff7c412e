"""`minflinkd init`: a project with a job that works: job file, module, test, Makefile, README."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.output import output_options, print_json

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST: Final = 60


@click.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", help="Of the job: small letters, digits and '-'. Default: the directory's name.")
@output_options
def init(directory: Path, name: str | None, as_json: bool) -> None:
    """Make a project in DIRECTORY: a job that counts events by minute, its module, a test, a Makefile and a README.

    The job reads JSON files and writes Parquet files, exactly once. `minflinkd check` accepts it as it is, and its test
    runs without a daemon. Nothing is overwritten: DIRECTORY may exist, but none of the files may.

    \b
    Exit codes: 0 done; 2 the name or the directory cannot be used; 5 one of the files is there already.

    \b
    Examples:
      minflinkd init clicks
      minflinkd init ~/jobs/clicks --name clicks-by-minute
      cd clicks && make check test
    """
    chosen = _name(name or re.sub(r"[^a-z0-9]+", "-", directory.resolve().name.lower()).strip("-"))
    files = project(chosen, directory.resolve())
    if there := [path for path in files if (directory / path).exists()]:
        raise Failure(
            f"{directory} has {', '.join(there)} already.\nName another directory, or move them away.",
            ExitCode.CONFLICT,
        )
    try:
        for path, content in files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            with (directory / path).open("x") as file:
                file.write(content)
    except OSError as error:
        raise Failure(f"{error.filename} cannot be written: {error.strerror}.", ExitCode.REFUSED) from error
    if as_json:
        print_json({"name": chosen, "directory": str(directory.resolve()), "files": list(files)})
        return
    for path in files:
        click.echo(f"  {directory / path}")
    click.echo(f"Next: cd {directory} && make check test")


def _name(text: str) -> str:
    """Raises Failure."""
    if not _NAME.fullmatch(text) or len(text) > _LONGEST:
        raise Failure(
            f"{text!r} cannot be the name of a job.\nName it with --name: small letters, digits and '-', such as "
            "clicks-by-minute.",
            ExitCode.REFUSED,
        )
    return text


def project(name: str, directory: Path) -> dict[str, str]:
    """Return the content of each file of a new project, by its path. `directory`: where it will be. Pure."""
    module = name.replace("-", "_") + "_job"
    texts = {
        "job.yaml": _JOB,
        f"{module}.py": _MODULE,
        f"tests/test_{module}.py": _TEST,
        "events/2026-01-01.json": _EVENTS,
        "Makefile": _MAKEFILE,
        "README.md": _README,
        ".gitignore": _IGNORED,
    }
    words = {
        "@NAME@": name,
        "@MODULE@": module,
        "@INPUT@": json.dumps(str(directory / "events")),  # YAML reads it, whatever is in the path
        "@OUTPUT@": json.dumps(str(directory / "output")),
    }
    return {path: _filled(text, words) for path, text in texts.items()}


def _filled(text: str, words: Mapping[str, str]) -> str:
    return re.sub("|".join(words), lambda found: words[found[0]], text)


_JOB = """\
# Counts events by kind and minute of event time, and writes each minute once it is over.
#
#   make check              report every fault of this file
#   make run                submit it to the daemon
#   minflinkd explain job.yaml
name: @NAME@
parallelism: 1
params:
  input: @INPUT@   # an absolute path, or a URL such as s3://bucket/events
  output: @OUTPUT@
  ignored: heartbeat   # events of this kind do not count
checkpointing: {interval: 10 s, mode: exactly-once}
artifacts: [@MODULE@.py]
vertices:
  events:
    source:
      format: json
      path: ${input}
      schema: time TIMESTAMP, kind STRING, user STRING
    watermark: {column: time, delay: 1 minute}  # events that are later than this are dropped
  clean:
    inputs: [events]
    python: @MODULE@:clean
  counts:
    inputs: [clean]
    sql: |
      SELECT window(time, '1 minute').start AS minute, kind, count(*) AS events
      FROM clean
      GROUP BY window(time, '1 minute'), kind
  out:
    inputs: [counts]
    sink: {format: parquet, path: "${output}", delivery: exactly-once}
"""

_MODULE = '''\
"""The Python functions of job.yaml. Each gets its inputs as DataFrames by the ids of their vertices, and the params."""

from pyspark.sql import functions as f


def clean(inputs, params):
    """Leave out events without a kind, and those that do not count."""
    events = inputs["events"]
    return events.where(f.col("kind").isNotNull() & (f.col("kind") != f.lit(params["ignored"])))
'''

_TEST = '''\
"""Runs the job on a few rows, without a daemon: see "Testing a job" in the documentation of minflinkd."""

from pathlib import Path

JOB = Path(__file__).parents[1] / "job.yaml"


def event(time, kind="click", user="ada"):
    return {"time": time, "kind": kind, "user": user}


def test_a_minute_is_written_once_it_is_over(minflinkd_job):
    job = minflinkd_job(JOB)
    job.feed("events", event("2026-01-01T10:00:05"), event("2026-01-01T10:00:40"), event("2026-01-01T10:00:50", "view"))
    job.process()
    assert job.rows("out") == []
    job.advance_watermark("2026-01-01T10:01:00")
    job.assert_rows(
        "out",
        [
            {"minute": "2026-01-01T10:00:00", "kind": "click", "events": 2},
            {"minute": "2026-01-01T10:00:00", "kind": "view", "events": 1},
        ],
    )


def test_heartbeats_do_not_count(minflinkd_job):
    events = [event("2026-01-01T10:00:05", "heartbeat"), event("2026-01-01T10:00:06")]
    job = minflinkd_job(JOB, inputs={"events": events})
    assert [row["kind"] for row in job.rows("clean")] == ["click"]
'''

_EVENTS = """\
{"time": "2026-01-01T10:00:05", "kind": "click", "user": "ada"}
{"time": "2026-01-01T10:00:40", "kind": "view", "user": "grace"}
{"time": "2026-01-01T10:01:10", "kind": "heartbeat", "user": "ada"}
{"time": "2026-01-01T10:03:00", "kind": "click", "user": "ada"}
"""

_MAKEFILE = """\
INPUT = $(CURDIR)/events
OUTPUT = $(CURDIR)/output
PARAMS = -p input=$(INPUT) -p output=$(OUTPUT)

.PHONY: check explain test run update stop

check:    # every fault of the job, without a daemon
\tminflinkd check job.yaml $(PARAMS)

explain:  # the tasks, slots and state that it becomes, and Spark's plan
\tminflinkd explain job.yaml $(PARAMS)

test:     # on a few rows, without a daemon
\tpython -m pytest tests

run:      # submit it; then: minflinkd watch @NAME@
\tminflinkd run job.yaml $(PARAMS)

update:   # replace the running job by this version, with its state
\tminflinkd hot-restart @NAME@ job.yaml $(PARAMS)

stop:     # write what is open, take a savepoint, end it
\tminflinkd stop @NAME@ --drain
"""

_README = """\
# @NAME@

Counts events by kind and minute, from JSON files to Parquet files, exactly once. It runs on minflinkd.

| | |
|---|---|
| `job.yaml` | the job: where rows come from, what becomes of them, where they go |
| `@MODULE@.py` | its Python functions |
| `tests/` | its tests, which need no daemon |
| `events/` | a few events to begin with |

    pip install minflinkd pytest     # and Java 17
    make check test                  # without a daemon
    minflinkd serve                  # in another terminal
    make run
    minflinkd watch @NAME@

Put more files into `events/` while it runs. After a change, `make check test update` replaces the running version, and
its state stays.
"""

_IGNORED = """\
output/
__pycache__/
.pytest_cache/
"""
