"""The job that the recorded queries of a script make: a source with its sink for each. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from minflinkd.jobgraph.formats import FILE_FORMATS
from minflinkd.runtime.secrets import is_sensitive
from minflinkd.taskmanager.session.scripts.recording import Query, Refusal
from minflinkd.taskmanager.session.scripts.writer import JOB_FILE

QUERY, SINK = "query_", "batches_"  # functions of the module that the client adds, with the number of the query
_IGNORED: Final = ("checkpointlocation",)
_OF_DELTA: Final = {"mergeschema": {"schema": "add-columns"}}  # options of Delta's own writer, as ours has them
_DEFAULT: Final = "parquet"
_UNITS: Final = {
    "day": 86400.0,
    "hour": 3600.0,
    "minute": 60.0,
    "second": 1.0,
    "millisecond": 0.001,
    "microsecond": 1e-6,
}
_PART: Final = re.compile(rf"(\d+(?:\.\d+)?)\s+({'|'.join(_UNITS)})s?\b")


def described(module: str, queries: Sequence[Query]) -> tuple[dict[str, Any], list[str], list[Refusal]]:
    """Return the part of a job document that the queries make, notes, and what a job cannot do.

    `module`: has the functions that give a query's rows, and write its batches.
    """
    notes, refusals = list[str](), list[Refusal]()
    vertices: dict[str, Any] = {}
    if sum(query.name is None for query in queries) > 1:
        _note(notes, "give each query a queryName: state finds it by its name or number in another version")
    if not queries:
        refusals.append(Refusal(0, "the script starts no query", "a job needs writeStream.start() at least once"))
    for number, query in enumerate(queries, 1):
        name = _id(query.name or f"query{number}", vertices)
        vertices[name] = {"source": {"python": f"{module}:{QUERY}{number}"}}
        sink = _sink(module, number, query, notes, refusals)
        vertices[_id(f"{name}_out", vertices)] = {
            "inputs": [name],
            "sink": sink,
            **({"output-mode": query.mode} if query.mode else {}),
        }
    return {"vertices": vertices, **_triggers(queries, notes, refusals)}, notes, refusals


def _id(name: str, taken: dict[str, Any]) -> str:
    """Return an id of a vertex that nobody has."""
    made = re.sub(r"\W", "_", name, flags=re.ASCII)
    made = made if re.match(r"[A-Za-z_]", made) else f"q_{made}"
    known = {other.lower() for other in taken}
    wanted, number = made, 1
    while wanted.lower() in known:
        number += 1
        wanted = f"{made}_{number}"
    return wanted


def _sink(module: str, number: int, query: Query, notes: list[str], refusals: list[Refusal]) -> dict[str, Any]:
    options = {key: text for key, text in query.options.items() if key.lower() not in _IGNORED}
    if len(options) < len(query.options):
        _note(notes, "checkpointLocation is left out: the job's checkpoints are the daemon's")
    if query.function is not None:
        _note(notes, f"line {query.line}: foreachBatch is at-least-once: after a restart it gets rows again")
        return {"python": f"{module}:{SINK}{number}"}
    for key, text in options.items():
        if is_sensitive(key) and not text.startswith("${secret:"):
            problem, hint = f"the option {key} would be stored with the job", "${secret:name}, see docs/security.md"
            refusals.append(Refusal(query.line, problem, hint))
    kind = (query.format or _DEFAULT).lower()
    path = next((options.pop(key) for key in list(options) if key.lower() == "path"), None)
    found: dict[str, Any] = {"format": kind, "options": options}
    if kind in FILE_FORMATS or kind == "delta":
        if path is None:
            refusals.append(Refusal(query.line, f"the {kind} query has no path", 'start("/data/out")'))
        found["path"] = path
        if query.partition_by:
            found["partition-by"] = list(query.partition_by)
    if kind == "delta":
        found["options"] = {}
        for key, value in options.items():
            if key.lower() in _OF_DELTA and value == "true":
                found["options"] |= _OF_DELTA[key.lower()]
            else:
                _note(notes, f"line {query.line}: {key} is an option of Delta's own writer, and is left out")
    elif kind not in (*FILE_FORMATS, "kafka", "console", "noop"):
        refusals.append(Refusal(query.line, f"a job does not write to {kind} from a script", JOB_FILE))
    return found


def _triggers(queries: Sequence[Query], notes: list[str], refusals: list[Refusal]) -> dict[str, Any]:
    """Return the job's mode and trigger interval: it has one for all of its queries."""
    ends, intervals = set[bool](), list[tuple[str, float]]()
    for query in queries:
        kinds = query.trigger.keys()
        if other := kinds - {"processingTime", "availableNow", "once"}:
            refusals.append(Refusal(query.line, f"a job has no trigger {min(other)}", "processingTime or availableNow"))
        ends.add(bool(kinds & {"availableNow", "once"}))
        if "processingTime" in kinds:
            text = str(query.trigger["processingTime"])
            if (seconds := _seconds(text)) is None:
                refusals.append(Refusal(query.line, f"{text!r} is not an interval", "5 seconds, for example"))
            else:
                intervals.append((text, seconds))
    if len(ends) > 1:
        line = next(query.line for query in queries if query.trigger.keys() & {"availableNow", "once"})
        hint = "divide it into two scripts"
        refusals.append(Refusal(line, "one query ends by itself, and another one does not", hint))
    if len(set(intervals)) > 1:
        _note(notes, f"a job has one trigger interval: {intervals[0][0]}, that of its first query")
    settings: dict[str, Any] = {"mode": "batch"} if ends == {True} else {}
    return settings | ({"trigger-interval": intervals[0][1]} if intervals else {})


def _seconds(interval: str) -> float | None:
    """Return an interval of Spark, such as `1 minute 30 seconds`; None for what is none."""
    text = interval.lower().strip().removeprefix("interval ")
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _note(notes: list[str], what: str) -> None:
    if what not in notes:
        notes.append(what)
