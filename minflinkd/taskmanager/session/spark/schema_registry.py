"""Reaches Schema Registries (K10), by the class `SchemaRegistry` in Java: executors ask for writers' schemas, too."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError

from minflinkd.jobgraph.model import SchemaRegistry
from minflinkd.jobgraph.records import url_problem
from minflinkd.runtime.errors import Consequence, Kind, MinflinkError

if TYPE_CHECKING:
    from minflinkd.taskmanager.session.spark.session import Session

_TIMEOUT: Final = 10_000  # ms that a submission waits for a registry
_LARGEST: Final = 1024**2  # bytes of a file with certificates
_TOLD: Final = re.compile(r"\[(SCHEMA_REGISTRY_AWAY|SCHEMA_REGISTRY_REFUSED|SCHEMA_UNKNOWN)\] (.+)")  # from Java


class RegistryAway(MinflinkError):
    """A Schema Registry has not answered, although it was asked several times."""

    code = "schema-registry-away"
    consequence = Consequence.RETRYABLE
    kind = Kind.JOB


class RegistryRefused(MinflinkError):
    """A Schema Registry does not take the credentials, or the server is no Schema Registry."""

    code = "schema-registry-refused"
    consequence = Consequence.RETRYABLE
    kind = Kind.JOB


class UnfitSchema(MinflinkError):
    """A job cannot read with a schema: the registry does not have it, or Spark has no type for it."""

    code = "unfit-schema"
    consequence = Consequence.REFUSED
    kind = Kind.JOB


class Version(NamedTuple):
    """A version of a subject. `schema` has all that it refers to."""

    number: str
    id: int
    schema: str


def error_in(text: str) -> MinflinkError | None:
    """Return what a text of the Java class says; None if there is nothing in it."""
    if (found := _TOLD.search(text)) is None:
        return None
    kind, why = found[1], found[2].strip()
    if kind == "SCHEMA_REGISTRY_AWAY":
        hint = "start the registry, or correct the url; schemas that the session knows are not asked for again"
        return RegistryAway(f"the Schema Registry does not answer: {why}", hint=hint)
    if kind == "SCHEMA_REGISTRY_REFUSED":
        hint = "give schema-registry the whole url of the API, and a user or a token that may read the subjects"
        return RegistryRefused(f"the Schema Registry refuses a request: {why}", hint=hint)
    return UnfitSchema(why)


def connect(session: Session, registry: SchemaRegistry) -> Any:
    """Return the registry in Java, with secrets filled in. Asks nothing. Raises RegistryRefused."""
    for url in registry.url.split(","):
        if problem := url_problem(url.strip()):
            raise RegistryRefused(problem, hint="url: https://registry:8081")
    certificates = None if registry.ca is None else _certificates(registry.ca)
    patience = max(1, round(registry.timeout * 1000))
    return session.jvm.org.minflinkd.SchemaRegistry(registry.url, _authorization(registry), certificates, patience)


def version_of(registry: Any, subject: str, number: int | None) -> Version:
    """Return a version of a subject; without a number the latest. Raises RegistryAway, RegistryRefused, UnfitSchema."""
    wanted = "latest" if number is None else str(number)
    try:
        found = registry.ofSubject(subject, wanted, _TIMEOUT)
    except Py4JJavaError as error:
        problem = error_in(str(error.java_exception.getMessage()))
        if isinstance(problem, UnfitSchema):
            hint = "register the schema of a writer first, or name another subject or version"
            raise UnfitSchema(f"the {wanted} version of {subject}: {problem}", hint=hint) from None
        if problem is not None:
            raise problem from None
        raise
    return Version(str(found[0]), int(found[1]), str(found[2]))


def _authorization(registry: SchemaRegistry) -> str | None:
    if registry.token is not None:
        return f"Bearer {registry.token}"
    if registry.user is None:
        return None
    return "Basic " + base64.b64encode(f"{registry.user}:{registry.password or ''}".encode()).decode()


def _certificates(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(_LARGEST)
    except OSError as error:
        hint = "ca: <a file on all TaskManagers, that their sessions may read>"
        raise RegistryRefused(f"the file of ca cannot be read: {file}: {error.strerror or error}", hint=hint) from error
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise RegistryRefused(f"the file of ca has no certificates in PEM: {file}", hint="name another file")
    return content.decode("utf-8", "replace")
