"""`minflinkd check`: a dry run that needs no daemon."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minflinkd.cli.check_config import parse_overrides
from minflinkd.cli.exits import ExitCode, Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from minflinkd.jobgraph.faults import GraphFault

FAULTS = 1  # the exit code


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def check(
    file: Path,
    params: tuple[str, ...],
    spark: bool,
    config: Path | None,
    overrides: tuple[str, ...],
    timeout: float,
    as_json: bool,
) -> None:
    """Check the job in FILE without a daemon: report every fault that `minflinkd run --dry-run` would, with its line.

    This starts a Spark session and ends it again, which takes about ten seconds on an idle machine. As at a submission,
    sources are looked at and the job's functions are called, but no query is started and no row is written. --no-spark
    needs neither Spark nor Java, and does not find what only Spark can find (SQL, columns, paths).

    \b
    Exit codes: 0 no faults; 1 faults, each on a line of stderr (with --json on stdout); 2 a wrong command line or
    configuration; 6 the job could not be checked (no Java, no memory for a session).

    \b
    Examples:
      minflinkd check job.yaml
      minflinkd check job.yaml -p minutes=30 --json | jq -r '.faults[].problem'
      minflinkd check job.yaml --no-spark
      for job in jobs/*.yaml; do minflinkd check "$job" || exit 1; done
    """
    from minflinkd.cli.run import params_of
    from minflinkd.runtime.errors import MinflinkError

    began = time.monotonic()
    values, settings = params_of(params), parse_overrides(overrides)
    try:
        faults = _by_spark(file, values, config, settings, timeout) if spark else _by_the_file(file, values)
    except (MinflinkError, OSError) as error:
        raise _not_checked(file, values, error, as_json=as_json) from error
    _print(file, faults, spark=spark, seconds=time.monotonic() - began, as_json=as_json)
    if faults:
        raise SystemExit(FAULTS)


def _by_the_file(file: Path, params: Mapping[str, object]) -> tuple[GraphFault, ...]:
    from minflinkd.jobgraph.document import read_job_file
    from minflinkd.jobgraph.faults import InvalidJobGraph

    try:
        read_job_file(file).with_params(params).job()
    except InvalidJobGraph as error:
        return tuple(error.faults)
    return ()


def _by_spark(
    file: Path, params: Mapping[str, object], config: Path | None, overrides: Mapping[str, str], timeout: float
) -> tuple[GraphFault, ...]:
    import stamina

    from minflinkd.cli.private_daemon import private_daemon, until_told_to_end
    from minflinkd.cli.submission import RefusedJob, submit
    from minflinkd.config import ConfigError
    from minflinkd.config.load import configuration_file
    from minflinkd.runtime.log import warnings_only

    stamina.instrumentation.set_on_retry_hooks([])

    async def checked() -> tuple[GraphFault, ...]:
        found = config or configuration_file(os.environ)
        async with private_daemon(found, overrides, start_timeout=timeout) as client:
            try:
                await submit(client, file, params=params, dry_run=True, tell=lambda _: None)
            except RefusedJob as error:
                return error.faults
            return ()

    try:
        with warnings_only("ERROR"):  # the private daemon's log is useless to the user
            return until_told_to_end(checked)
    except ConfigError as error:
        raise Failure(str(error), ExitCode.REFUSED) from error
    except KeyboardInterrupt:
        raise SystemExit(ExitCode.INTERRUPTED) from None


def _not_checked(file: Path, params: Mapping[str, object], error: Exception, *, as_json: bool) -> Failure:
    """Return the failure for a job that no Spark session has checked. Reports what the file alone shows."""
    import msgspec

    from minflinkd.cli.connection import JsonFailure
    from minflinkd.rest.schemas import ErrorAnswer
    from minflinkd.runtime.errors import error_info

    info, known = error_info(error), _lines(file, _by_the_file(file, params))
    if as_json:
        errors = (f"the job could not be checked: {info.message}", *known)
        answer = ErrorAnswer(
            errors=errors, code=info.code, consequence=info.consequence, kind=info.kind, hint=info.hint
        )
        return JsonFailure(msgspec.json.encode(answer).decode(), ExitCode.DAEMON_FAILED)
    return Failure("\n".join([*known, f"The job could not be checked: {info}"]), ExitCode.DAEMON_FAILED)


def _print(file: Path, faults: tuple[GraphFault, ...], *, spark: bool, seconds: float, as_json: bool) -> None:
    if as_json:
        import msgspec

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
        click.echo(msgspec.json.encode(document))
    elif faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        click.echo("\n".join([f"{file} has {count}", *_lines(file, faults)]), err=True)
    else:
        looked = f"Spark analysed it, {seconds:.0f} s" if spark else "by the file alone; Spark was not asked"
        click.echo(f"{file} has no faults ({looked}).")


def _lines(file: Path, faults: Iterable[GraphFault]) -> list[str]:
    from minflinkd.cli.submission import fault_lines

    return fault_lines(file, faults)
