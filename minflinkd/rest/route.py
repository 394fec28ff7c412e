"""One route of the endpoint: what it is for, what it takes, answers, and the role that it needs (E5, E41).

Role, sentence and answers have no default, so that none of them is left out by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypedDict, Unpack

from minflinkd.rest.backend import Handler
from minflinkd.rest.declared import IN_PATHS, Body, Declaration, InQuery, Parameter
from minflinkd.rest.identity.roles import Role

QUESTIONS = frozenset({"GET", "HEAD"})  # methods that change nothing
# A standby answers these itself, and leaves all others to the leader.
OF_EACH_DAEMON: Final = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
_NAMES: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Text:
    """An answer that is not JSON. `headers`: those of its own, with what they mean."""

    media: str
    headers: Mapping[str, str] = field(default_factory=dict)


PAGE: Final = Text("text/html")
NOTHING: Final = Text("")  # an answer without a body

Answers = Mapping[int, Any]  # by status: the type that is sent as JSON, or a Text


@dataclass(frozen=True)
class Route:
    """`means`: a sentence for who uses the path. `more`: what else they should know, as Markdown for docs/http.md.

    `answers`: those that are no errors. `errors`: statuses of errors that not every route has (`openapi/errors.py`).
    `names_job`: the path names no job, but the handler finds out the job and checks that the client reaches it.
    `head`: the path answers HEAD, too.
    `changes_all_the_same`: Flink's dashboard changes something with a GET.
    """

    method: str
    path: str
    handler: Handler
    role: Role
    means: str
    answers: Answers
    query: tuple[InQuery[Any], ...] = ()
    body: Body[Any] | None = None
    errors: tuple[int, ...] = ()
    names_job: bool = False
    more: str = ""
    endless: bool = False
    head: bool = False
    changes_all_the_same: bool = False  # although it is a GET

    @property
    def changes(self) -> bool:
        return self.method not in QUESTIONS or self.changes_all_the_same

    @property
    def of_cluster(self) -> bool:
        """Whether it changes something that is not one job's."""
        return self.changes and self.role > Role.ANYBODY and not self.names_job and "{jobid}" not in self.path

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        return (*(IN_PATHS[name] for name in _NAMES.findall(self.path)), *self.query)

    @cached_property
    def declarations(self) -> tuple[Declaration, ...]:
        return self.parameters if self.body is None else (*self.parameters, self.body)


class More(TypedDict, total=False):
    """Fields of Route that many routes do not have."""

    query: tuple[InQuery[Any], ...]
    body: Body[Any]
    errors: tuple[int, ...]
    names_job: bool
    more: str
    endless: bool
    head: bool
    changes_all_the_same: bool


def get(path: str, handler: Handler, role: Role, means: str, answers: Answers, **more: Unpack[More]) -> Route:
    return Route("GET", path, handler, role, means, answers, **more)


def post(path: str, handler: Handler, role: Role, means: str, answers: Answers, **more: Unpack[More]) -> Route:
    return Route("POST", path, handler, role, means, answers, **more)


def put(path: str, handler: Handler, role: Role, means: str, answers: Answers, **more: Unpack[More]) -> Route:
    return Route("PUT", path, handler, role, means, answers, **more)


def patch(path: str, handler: Handler, role: Role, means: str, answers: Answers, **more: Unpack[More]) -> Route:
    return Route("PATCH", path, handler, role, means, answers, **more)


def delete(path: str, handler: Handler, role: Role, means: str, answers: Answers, **more: Unpack[More]) -> Route:
    return Route("DELETE", path, handler, role, means, answers, **more)
