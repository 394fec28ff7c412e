"""One route of the endpoint: its path, what answers there, and the role that it takes. No role has a default (E41)."""

from __future__ import annotations

from dataclasses import dataclass

from minflinkd.rest.backend import Handler
from minflinkd.rest.identity.roles import Role

QUESTIONS = frozenset({"GET", "HEAD"})  # methods that change nothing


@dataclass(frozen=True)
class Route:
    """`names_job`: the path names no job, but the handler finds out the job and checks that the client reaches it."""

    method: str
    path: str
    handler: Handler
    role: Role
    names_job: bool = False

    @property
    def changes(self) -> bool:
        return self.method not in QUESTIONS

    @property
    def of_cluster(self) -> bool:
        """Whether it changes something that is not one job's."""
        return self.changes and self.role > Role.ANYBODY and not self.names_job and "{jobid}" not in self.path


def get(path: str, handler: Handler, role: Role) -> Route:
    return Route("GET", path, handler, role)


def post(path: str, handler: Handler, role: Role, *, names_job: bool = False) -> Route:
    return Route("POST", path, handler, role, names_job)


def put(path: str, handler: Handler, role: Role) -> Route:
    return Route("PUT", path, handler, role)


def patch(path: str, handler: Handler, role: Role) -> Route:
    return Route("PATCH", path, handler, role)


def delete(path: str, handler: Handler, role: Role) -> Route:
    return Route("DELETE", path, handler, role)
