"""`minflinkd check`: a dry run that needs no daemon."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minflinkd.cli.check_config import parse_overrides
from minflinkd.cli.exits import ExitCode, Failure, failure_of, sentence
from minflinkd.cli.job_files import JobFile, job_file_argument
from minflinkd.cli.output import output_options, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minflinkd.jobgraph.document import JobDocument
    from minflinkd.jobgraph.faults import GraphFault

FAULTS = 1  # the exit code


@click.command()
@job_file_argument
@click.option("-p", "--param", "params", multiple=True, metavar="KEY=VALUE", help="Set or replace one of the params.")
@click.option(
    "--spark/--no-spark",
    default=True,
    show_default=True,
    help="Start a Spark session to check SQL, schemas and functions, or check only the file.",
)
@click.option(
    "-c",
    "--config",
    "config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The daemon's configuration (taskmanager.spark.conf, ...). Default: what `serve` would read.",
)
@click.option("-D", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override an option.")
@click.option(
    "--timeout", default=180.0, show_default=True, metavar="SECONDS", help="How long the session may take to start."
)
@output_options
def check(
    file: JobFile,
    params: tuple[str, ...],
    spark: bool,
    config: Path | None,
    overrides: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> None:
    """Check the job in FILE without a daemon: report every fault that `minflinkd run --dry-run` would, with its line.

    FILE is a path or a URL, as for `minflinkd run`. Artifacts at URLs are fetched, and hashes are compared.

    This starts a Spark session and ends it again, which takes about ten seconds on an idle machine. As at a submission,
    sources are looked at and the job's functions are called, but no query is started and no row is written. --no-spark
    needs neither Spark nor Java, and does not find what only Spark can find (SQL, columns, paths).

    \b
    Exit codes: 0 no faults; 1 faults, each on a line of stderr (with --json on stdout); 2 a wrong command line or
    configuration, or FILE cannot be read; 3 the server of FILE does not answer; 6 the job could not be checked (no
    Java, no memory for a session).

    \b
    Examples:
      minflinkd check job.yaml
      minflinkd check job.yaml -p minutes=30 --json | jq -r '.faults[].problem'
      minflinkd check job.yaml --no-spark
      minflinkd check https://host/releases/7/job.yaml
      for job in jobs/*.yaml; do minflinkd check "$job" || exit 1; done
    """
    import asyncio

    from minflinkd.cli.job_files import read_job
    from minflinkd.cli.run import params_of
    from minflinkd.jobgraph.faults import InvalidJobGraph
    from minflinkd.runtime.errors import MinflinkError

    began = time.monotonic()
    values, settings = params_of(params), parse_overrides(overrides)
    try:
        document = asyncio.run(read_job(file)).with_params(values)
        try:
            faults = _by_spark(document, config, settings, timeout) if spark else asyncio.run(_by_the_file(document))
        except (MinflinkError, OSError) as error:
            raise _not_checked(file, document, error, as_json=as_json) from error
    except InvalidJobGraph as error:  # the text is no YAML
        faults = error.faults
    except MinflinkError as error:  # the file at a URL cannot be read
        raise failure_of(error) from error
    _print(file, faults, spark=spark, seconds=time.monotonic() - began, as_json=as_json)
    if faults:
        raise SystemExit(FAULTS)


async def _by_the_file(document: JobDocument) -> tuple[GraphFault, ...]:
    from minflinkd.cli.job_files import with_artifacts

    async with with_artifacts(document, lambda _: None) as complete:
        return _faults_of(complete)


def _faults_of(document: JobDocument) -> tuple[GraphFault, ...]:
    from minflinkd.jobgraph.faults import InvalidJobGraph

    try:
        document.job()
    except InvalidJobGraph as error:
        return error.faults
    return ()


def _by_spark(
    document: JobDocument, config: Path | None, overrides: Mapping[str, str], timeout: float
) -> tuple[GraphFault, ...]:
    import stamina

    from minflinkd.cli.private_daemon import private_daemon, until_told_to_end
    from minflinkd.cli.submission import submit_document
    from minflinkd.config import ConfigError
    from minflinkd.config.load import configuration_file
    from minflinkd.jobgraph.faults import InvalidJobGraph
    from minflinkd.runtime.log import warnings_only

    stamina.instrumentation.set_on_retry_hooks([])

    async def checked() -> tuple[GraphFault, ...]:
        found = config or configuration_file(os.environ)
        async with private_daemon(found, overrides, start_timeout=timeout) as client:
            try:
                await submit_document(client, document, dry_run=True, tell=lambda _: None)
            except InvalidJobGraph as error:
                return error.faults
            return ()

    try:
        with warnings_only("ERROR"):  # the private daemon's log is useless to the user
            return until_told_to_end(checked)
    except ConfigError as error:
        raise Failure(str(error), ExitCode.REFUSED) from error
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.INTERRUPTED) from None


def _not_checked(file: JobFile, document: JobDocument, error: Exception, *, as_json: bool) -> Failure:
    """Return the failure for a job that no Spark session has checked. Reports what the file alone shows."""
    from minflinkd.rest.schemas import ErrorAnswer
    from minflinkd.runtime.errors import error_info

    info, known = error_info(error), _lines(file, _faults_of(document))
    if as_json:
        told = (f"the job could not be checked: {info.message}", *known)
    else:
        told = (*known, f"The job could not be checked: {info}")
    answer = ErrorAnswer(errors=told, code=info.code, consequence=info.consequence, kind=info.kind, hint=info.hint)
    return Failure("\n".join(map(sentence, told)), ExitCode.DAEMON_FAILED, answer=answer)


def _print(file: JobFile, faults: tuple[GraphFault, ...], *, spark: bool, seconds: float, as_json: bool) -> None:
    if as_json:
        found = [
            {
                "path": fault.path,
                "problem": fault.problem,
                "hint": fault.hint,
                "line": fault.line,
                "traceback": fault.traceback,
                "code": fault.code,
            }
            for fault in faults
        ]
        document = {"valid": not faults, "file": str(file), "spark": spark, "faults": found}
        print_json(document)
    elif faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        click.echo("\n".join([f"{file} has {count}", *_lines(file, faults)]), err=True)
    else:
        looked = f"Spark analysed it, {seconds:.0f} s" if spark else "by the file alone; Spark was not asked"
        click.echo(f"{file} has no faults ({looked}).")


def _lines(file: JobFile, faults: Iterable[GraphFault]) -> list[str]:
    from minflinkd.cli.submission import fault_lines

    return fault_lines(file, faults)
