"""What requests carry, declared once (E5): a declaration reads a value, refuses a wrong one, and describes itself.

A route names its declarations, and its handler reads through them. So what is read is in `/openapi.json`, and what is
there is read.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from minflinkd.jobgraph.model import JobGraph
from minflinkd.rest.errors import InvalidRequest
from minflinkd.rest.guard import Limits, read_json_body
from minflinkd.runtime.errors import MALFORMED
from minflinkd.runtime.ids import HEX32, RESOURCE_ID, JobId, ResourceId, parse_job_id, parse_resource_id

T = TypeVar("T")

MOST: Final = 10**18 - 1  # of whole numbers
JSON: Final = "application/json"
_LOG_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_SMALL: Final = 64 * 1024  # bytes: a body that may be read twice
_YES: Final = ""  # a flag may be given by its name alone, such as `?dry-run`


@dataclass(frozen=True, eq=False)
class InPath(Generic[T]):
    """A part of the path. `kind` is its type for msgspec; `read` does more than that, if a text is not enough."""

    name: str
    means: str
    kind: Any
    read: Callable[[str], T] | None = None

    def of(self, request: web.Request) -> T:
        """Raises InvalidRequest, and what `read` raises."""
        _require_declared(request, self)
        return _read(self, request.match_info[self.name])


@dataclass(frozen=True, eq=False)
class InQuery(Generic[T]):
    """A part of the query; of several with the same name, the first counts."""

    name: str
    means: str
    kind: Any
    default: T
    read: Callable[[str], T] | None = None

    def of(self, request: web.Request) -> T:
        """Raises InvalidRequest, and what `read` raises."""
        _require_declared(request, self)
        text = request.query.get(self.name)
        return self.default if text is None else _read(self, text)

    def is_in(self, request: web.Request) -> bool:
        _require_declared(request, self)
        return self.name in request.query


Parameter = InPath[Any] | InQuery[Any]


@dataclass(frozen=True, eq=False)
class Body(Generic[T]):
    """A body of this type, as JSON. `optional`: an empty one stands for `{}`."""

    kind: type[T]
    means: str
    optional: bool = False
    media: tuple[str, ...] = (JSON,)  # the first is JSON

    async def of(self, request: web.Request, limits: Limits) -> T:
        """Raises UnsupportedMediaType, BodyTooLarge, BodyTooSlow, InvalidRequest."""
        text = await self.text(request, limits) if request.body_exists else b""
        if not text and not self.optional:
            raise InvalidRequest("the body is missing", hint=self.means)
        return self.decoded(text or b"{}")

    async def text(self, request: web.Request, limits: Limits) -> bytes:
        """Return the body for somebody else to decode. Raises UnsupportedMediaType, BodyTooLarge, BodyTooSlow."""
        _require_declared(request, self)
        return await read_json_body(request, limits)

    def decoded(self, text: bytes) -> T:
        """Raises InvalidRequest."""
        try:
            return msgspec.json.decode(text, type=self.kind)
        except MALFORMED as error:
            if "Expected `int`, got `float`" in str(error) and len(text) <= _SMALL:
                with contextlib.suppress(*MALFORMED, ValueError):
                    whole = json.dumps(json.loads(text, parse_float=_number))
                    return msgspec.json.decode(whole, type=self.kind)
            hint = self._hint(str(error))
            raise InvalidRequest(f"the body is not what it must be: {error}", hint=hint) from error

    def _hint(self, problem: str) -> str:
        """Return what the schema says of the field at fault."""
        at = re.search(r"`\$\.([\w-]+)`$", problem)
        if at is None or not isinstance(self.kind, type) or not issubclass(self.kind, msgspec.Struct):
            return ""
        _, schemas = msgspec.json.schema_components([self.kind])
        field = schemas[self.kind.__name__]["properties"].get(at[1], {})
        return str(next((one["description"] for one in (field, *field.get("anyOf", ())) if "description" in one), ""))


def _number(text: str) -> float | int:
    """Some clients write a whole number as 178.0. For a JSON schema that is an integer, for msgspec it is not."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) <= MOST else number


Declaration = Parameter | Body[Any]
_DECLARED: Final = web.RequestKey("declared", tuple)


def declare(request: web.Request, declarations: Iterable[Declaration]) -> None:
    """Note what the route of a request declares. Its handler can read nothing else."""
    request[_DECLARED] = tuple(declarations)


def _require_declared(request: web.Request, wanted: Declaration) -> None:
    """A handler that reads what its route does not declare has a bug: nobody could know of it."""
    assert wanted in request.get(_DECLARED, ()), f"{request.method} {request.path} does not declare {wanted}"


def _read(parameter: InPath[T] | InQuery[T], text: str) -> T:
    try:
        if parameter.kind is bool and text == _YES:
            text = "true"
        if parameter.read is not None:
            return parameter.read(text)
        found: T = msgspec.convert(text, parameter.kind, strict=False)
        return found
    except (msgspec.ValidationError, UnicodeError) as error:  # a query may have half a character
        hint = in_words(msgspec.json.schema(parameter.kind))
        raise InvalidRequest(f"{parameter.name} is {text[:80]!r}", hint=hint) from error


def in_words(schema: dict[str, Any]) -> str:
    """Say what a parameter takes."""
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "boolean":
        return "true or false"
    if schema.get("type") == "integer":
        return f"a whole number from {schema['minimum']:,} to {schema['maximum']:,}"
    return ""


def like(pattern: re.Pattern[str]) -> Any:
    """Return the type of a text that matches the pattern as a whole."""
    return Annotated[str, Meta(pattern=f"^({pattern.pattern})$" if "|" in pattern.pattern else f"^{pattern.pattern}$")]


def flag(name: str, means: str) -> InQuery[bool]:
    return InQuery(name, means, bool, default=False)


def whole(least: int = 0, most: int = MOST) -> Any:
    """Return the type of a whole number."""
    return Annotated[int, Meta(ge=least, le=most)]


def _log_name(text: str) -> str:
    if not _LOG_NAME.fullmatch(text):
        raise InvalidRequest(f"{text[:80]!r} is not the name of a log", hint="GET .../logs lists them")
    return text


SOME_TEXT: Final = Annotated[str, Meta(min_length=1)]

JOB_ID: Final = InPath[JobId]("jobid", "The job's id", like(HEX32), parse_job_id)
TASK_MANAGER_ID: Final = InPath[ResourceId](
    "taskmanagerid", "The TaskManager's id", like(RESOURCE_ID), parse_resource_id
)
CHECKPOINT_NUMBER: Final = InPath[int]("checkpointid", "The number of a checkpoint", whole())
VERTEX: Final = InPath[str]("vertexid", "The id of a vertex; of a task, also its own id", SOME_TEXT)
TRIGGER_ID: Final = InPath[str]("triggerid", "The `request-id` of the answer that began it", SOME_TEXT)
LOG_NAME: Final = InPath[str]("filename", "The name of a log, as the list has it", like(_LOG_NAME), _log_name)
PAGE_DIGEST: Final = InPath[str]("digest", "Changes with the files, and is in the page that names them", SOME_TEXT)
PAGE_FOLDER: Final = InPath[str]("folder", "The folder of a file of the page", SOME_TEXT)
PAGE_FILE: Final = InPath[str]("file", "The name of a file of the page", SOME_TEXT)
APPLICATION_ID: Final = InPath[JobId]("applicationid", "The application's id: its job's", like(HEX32), parse_job_id)
SUBTASK: Final = InPath[int]("subtaskindex", "The number of a subtask", whole(most=2**31 - 1))
ATTEMPT: Final = InPath[int]("attempt", "The number of an attempt", whole(most=2**31 - 1))
RESCALE: Final = InPath[str]("rescaleuuid", "The id of a rescale, as the history has it", like(HEX32))
OPERATOR_UID: Final = InPath[str]("operatorUid", "The id of an operator", SOME_TEXT)
DATASET: Final = InPath[str]("datasetid", "The id of a data set", SOME_TEXT)
NEW_JOB_ID: Final = InPath[JobId](
    "newjobid", "The id of a job, also of one that is submitted later", like(HEX32), parse_job_id
)
JAR: Final = InPath[str]("jarid", "The id of an uploaded file, as the list has it", like(_LOG_NAME), _log_name)
_ALL_IN_PATHS: Final[tuple[InPath[Any], ...]] = (
    *(JOB_ID, TASK_MANAGER_ID, CHECKPOINT_NUMBER, VERTEX, TRIGGER_ID, LOG_NAME),
    *(PAGE_DIGEST, PAGE_FOLDER, PAGE_FILE, NEW_JOB_ID),
    *(APPLICATION_ID, SUBTASK, ATTEMPT, RESCALE, OPERATOR_UID, DATASET, JAR),
)
IN_PATHS: Final[Mapping[str, InPath[Any]]] = {each.name: each for each in _ALL_IN_PATHS}

JOB_DOCUMENT: Final = Body(JobGraph, "A job file as JSON; its artifacts are uploaded to the BlobServer before")
