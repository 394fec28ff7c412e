"""An OpenLineage event from a change of a job. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit
from uuid import UUID

from minflinkd import __version__
from minflinkd.listeners.interface import ChangeKind, Dataset, JobChange

PRODUCER: Final = f"https://pypi.org/project/minflinkd/{__version__}/"
_SPEC: Final = "https://openlineage.io/spec"
SCHEMA: Final = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_TYPES: Final = {
    ChangeKind.STARTED: "START",
    ChangeKind.COMPLETED: "COMPLETE",
    ChangeKind.FAILED: "FAIL",
    ChangeKind.CANCELED: "ABORT",
}
_NO_DATA: Final = frozenset({"console", "collect", "noop", "rate", "rate-micro-batch", "python", ""})
_TOPICS: Final = ("topic", "subscribe")


def event(change: JobChange, namespace: str) -> dict[str, Any]:
    """Return the event. The run has the job's id, so an event that is sent twice is the same event."""
    return {
        "eventType": _TYPES[change.kind],
        "eventTime": _time(change.at_ms),
        "producer": PRODUCER,
        "schemaURL": SCHEMA,
        "run": {"runId": str(UUID(hex=change.job_id)), "facets": dict(_run_facets(change))},
        "job": {"namespace": namespace, "name": change.name, "facets": dict(_job_facets(change))},
        "inputs": [each for source in change.inputs for each in datasets(source)],
        "outputs": [each for sink in change.outputs for each in datasets(sink)],
    }


def datasets(known: Dataset) -> Iterator[dict[str, Any]]:
    """Yield the datasets of a source or sink, named as OpenLineage names them; none if it is not one outside."""
    options = {name.lower(): value for name, value in known.options.items()}
    if known.format in _NO_DATA:
        return
    if known.format == "kafka":
        servers = options.get("kafka.bootstrap.servers", "").partition(",")[0]
        names = next((options[name] for name in _TOPICS if name in options), "")
        for topic in filter(None, (each.strip() for each in names.split(","))):
            yield {"namespace": f"kafka://{servers}", "name": topic}
    elif known.format == "jdbc":
        yield from _table(options)
    elif known.path and (parts := _split(known.path)) is not None:
        if parts.scheme in ("", "file"):
            yield {"namespace": "file", "name": parts.path}
        else:
            yield {
                "namespace": f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}",
                "name": parts.path.strip("/") or "/",
            }


def _split(text: str) -> SplitResult | None:
    """Return the parts of a URL; None if it is none: then there is no name for the dataset."""
    try:
        return urlsplit(text)
    except ValueError:
        return None


def _table(options: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """`jdbc:postgresql://host:5432/shop` with `dbtable` `sales` is `shop.public.sales` of `postgres://host:5432`."""
    parts = _split(options.get("url", "").removeprefix("jdbc:"))
    table = options.get("dbtable", "")
    if parts is None or not parts.scheme or not table or " " in table.strip():
        return
    kind = "postgres" if parts.scheme == "postgresql" else parts.scheme
    host = parts.netloc.rpartition("@")[2]
    port = {"postgres": ":5432", "mysql": ":3306"}.get(kind, "") if host and ":" not in host else ""
    schema = "public." if kind == "postgres" and "." not in table else ""
    database = parts.path.strip("/")
    name = ".".join(filter(None, (database, f"{schema}{table}")))
    yield {"namespace": f"{kind}://{host}{port}", "name": name}


def _run_facets(change: JobChange) -> Iterator[tuple[str, dict[str, Any]]]:
    yield (
        "processing_engine",
        {**_facet("1-1-1/ProcessingEngineRunFacet"), "version": __version__, "name": "minflinkd"},
    )
    yield ("nominalTime", {**_facet("1-0-1/NominalTimeRunFacet"), "nominalStartTime": _time(change.started_ms)})
    if change.error is not None:
        error = {"message": change.error.message, "programmingLanguage": "Python"}
        trace = {"stackTrace": change.error.traceback} if change.error.traceback else {}
        yield ("errorMessage", {**_facet("1-0-1/ErrorMessageRunFacet"), **error, **trace})


def _job_facets(change: JobChange) -> Iterator[tuple[str, dict[str, Any]]]:
    kind = {"processingType": "STREAMING", "integration": "MINFLINKD", "jobType": "JOB"}
    yield ("jobType", {**_facet("2-0-4/JobTypeJobFacet"), **kind})
    if change.sql:
        yield ("sql", {**_facet("1-1-0/SQLJobFacet"), "query": change.sql, "dialect": "spark"})
    if change.owner:
        yield ("ownership", {**_facet("1-0-1/OwnershipJobFacet"), "owners": [{"name": change.owner}]})


def _facet(name: str) -> dict[str, str]:
    file = name.rpartition("/")[2]
    return {"_producer": PRODUCER, "_schemaURL": f"{_SPEC}/facets/{name}.json#/$defs/{file}"}


def _time(ms: int) -> str:
    return datetime.fromtimestamp(max(ms, 0) / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
