"""Job files as users name them: by a path of this machine, or by a URL. Their artifacts may be at URLs, too.

They are fetched here, by the user's command, and never by the daemon: credentials stay with the user, and the daemon
opens no address that a job names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from minflinkd.jobgraph.document import JobDocument  # slow to import
    from minflinkd.jobgraph.places import Place
    from minflinkd.runtime.errors import MinflinkError

LARGEST_JOB_FILE = 4 << 20  # bytes; the daemon takes no larger document
LARGEST_ARTIFACT = 10 << 30  # bytes; the daemon's own limit is blob.max-size
AT_ONCE = 4  # artifacts

JobFile: TypeAlias = "Path | Place"

_LOCAL = click.Path(exists=True, dir_okay=False, path_type=Path)


def _job_file(context: click.Context, parameter: click.Parameter, value: str) -> JobFile:
    from minflinkd.jobgraph.places import InvalidUrl, is_url, place_of

    if not is_url(value):
        return Path(_LOCAL.convert(value, parameter, context))
    try:
        return place_of(value)
    except InvalidUrl as error:
        raise click.BadParameter(str(error), context, parameter) from None


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _LOCAL.shell_complete(context, parameter, incomplete)


# An argument `file`: a path or a URL. A local file must exist.
job_file_argument = click.argument("file", callback=_job_file, shell_complete=_complete)


# The arguments of a script. An option for the script comes after `--`.
script_arguments = click.argument("args", nargs=-1, type=click.UNPROCESSED)


async def read_job(file: JobFile, args: Sequence[str] = ()) -> JobDocument:
    """Read a job file, or a PySpark script with its arguments.

    Raises InvalidJobGraph, UnusableScript, OSError, and for a URL what `fetching.fetch` raises.
    """
    import tempfile

    from minflinkd.cli.fetching import fetch
    from minflinkd.cli.scripts import UnusableScript, is_script, read_script
    from minflinkd.jobgraph.document import read_job_file

    if isinstance(file, Path) and is_script(file):
        return read_script(file, args)
    if args:
        raise UnusableScript(f"{file} is a job file, and takes no arguments", hint="params are given as -p name=value")
    if isinstance(file, Path):
        return read_job_file(file)
    assert not isinstance(file.file, Path)
    if file.file.name.endswith(".py"):
        raise UnusableScript(f"{file} is a script at a URL", hint="scripts are files of this machine: download it")
    with tempfile.TemporaryDirectory(prefix="minflinkd-job-", ignore_cleanup_errors=True) as directory:
        fetched = Path(directory, "job.json" if file.file.name.endswith(".json") else "job.yaml")
        await fetch(file, fetched, largest=LARGEST_JOB_FILE)
        return replace(read_job_file(fetched), base=file.file)


@asynccontextmanager
async def with_artifacts(document: JobDocument, tell: Callable[[str], None]) -> AsyncIterator[JobDocument]:
    """Yield the document with its artifacts at URLs fetched, and with all hashes compared, until the block ends.

    What fails becomes a fault of the document, so that it is reported together with all others (J4).
    """
    import tempfile

    from minflinkd.storage.parallel import for_each

    places = dict(_places(document))
    if not places and not document.made:
        yield document
        return
    if remote := [str(place) for place in places.values() if not isinstance(place.file, Path)]:
        tell(f"Fetching {', '.join(remote)}")
    with tempfile.TemporaryDirectory(prefix="minflinkd-artifacts-", ignore_cleanup_errors=True) as directory:

        async def one(numbered: tuple[int, str]) -> tuple[str, Path | MinflinkError]:
            number, path = numbered
            return path, await _file(places[path], Path(directory, str(number)))

        fetched: dict[str, Path | MinflinkError] = dict(await for_each(enumerate(places), one, limit=AT_ONCE))
        for path, text in document.made.items():
            fetched[path] = Path(directory, path)
            Path(directory, path).write_text(text, encoding="utf-8")
        yield replace(document, fetched=fetched)


async def _file(place: Place, target: Path) -> Path | MinflinkError:
    from minflinkd.cli.fetching import fetch, verify
    from minflinkd.runtime.errors import MinflinkError
    from minflinkd.storage.os_errors import os_errors

    try:
        if isinstance(place.file, Path):
            with os_errors(place.file):
                if place.file.is_file():  # otherwise the document has a fault already
                    await verify(place)
            return place.file
        with os_errors(target):
            await fetch(place, target, largest=LARGEST_ARTIFACT)
    except MinflinkError as error:
        return error
    return target


def _places(document: JobDocument) -> list[tuple[str, Place]]:
    """Return what has to be fetched or compared, by the text in the job file. Faulty entries are left out."""
    from minflinkd.jobgraph.places import InvalidUrl, place_of

    artifacts = document.value.get("artifacts") if isinstance(document.value, Mapping) else None
    found = []
    for entry in artifacts if isinstance(artifacts, list | tuple) else ():
        path = entry.get("path") if isinstance(entry, Mapping) and entry.get("key") is None else entry
        if isinstance(path, str):
            try:
                place = place_of(path, document.base or Path())
            except InvalidUrl:
                continue  # a fault of the document
            if place.digest is not None or not isinstance(place.file, Path):
                found.append((path, place))
    return found
