"""Requests that schemathesis makes of `/openapi.json`: what it allows, and what it does not allow (E5, E45)."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import CheckContext, Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from minflinkd.rest.identity import access
from tests.attack.conftest import AttackedDaemon
from tests.attack.loop_watch import watched
from tests.attack.test_generated_requests import DEADLY, LONGEST
from tests.golden.files import HERE, STATE, versions
from tests.golden.state import ENDED, FULL, RUNNING
from tests.shortened import examples

EXAMPLES = examples(26)  # for each operation that takes anything
ORDER = ["GET", "POST", "PUT", "DELETE", "PATCH"]  # first what changes nothing, last what cancels jobs
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
# What is in a body may be refused for what it means: a job without vertices, a vertex that the job does not have. So
# may the path of a savepoint.
MEANINGFUL = {
    "GET /jobs/{jobid}/state",
    "GET /jobs/{jobid}/vertices/{vertexid}/state",
    "GET /jobs/{jobid}/vertices/{vertexid}/state/growth",
    "POST /jobs",
    "GET /jars/{jarid}/plan",
    "POST /jars/{jarid}/plan",
    "POST /jars/{jarid}/run",
    "POST /jars/{jarid}/run-application",
    "POST /jars/upload",  # its parts are not declared
    "POST /jobs/text",
    "POST /jobs/{jobid}/backfill",
    "POST /jobs/{jobid}/hot-restart",
    "POST /jobs/{jobid}/submit-again",
    "POST /savepoint-disposal",
    "PUT /jobs/{jobid}/resource-requirements",
}
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedDaemon]:
    """A daemon with jobs that an earlier one has left: one waits for slots, one is cancelled, one has ended."""
    state = shutil.copytree(HERE / versions()[-1] / STATE, tmp_path_factory.mktemp("attacked") / "state")
    for record in (*state.glob(f"jobs/*/{FULL}.json"), *state.glob(f"jobs/versions/{FULL}/*")):
        record.unlink()  # it has every field set, so it is no job that could run
    daemon = AttackedDaemon(state)
    yield daemon
    daemon.close()


def blameless(_: CheckContext, response: Response, case: Case) -> None:
    """The daemon has no fault. It may say that the same request can succeed later, such as when a TaskManager comes."""
    if response.status_code == 503:
        told = {name: response.headers[name] for name in ("minflinkd-error-consequence", "retry-after")}
        always = "/rescaling" in case.operation.path  # Flink refuses it with 503, too
        assert told == {
            "minflinkd-error-consequence": ["refused" if always else "retryable"],
            "retry-after": ["1"],
        }, response.text
    else:
        assert response.status_code < 500, f"{case.operation.label}: {response.text}"


def without_tokens(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document as if nobody were asked for a token: otherwise many requests would only lack one."""
    del document["security"]
    for operation in (one for path in document["paths"].values() for one in path.values()):
        operation.pop("security", None)
    return document


def words(operations: Iterable[APIOperation]) -> set[str]:
    """Return the fixed parts of all paths, such as "overview"."""
    return {part for operation in operations for part in operation.path.split("/") if not part.startswith("{")}


def cases(operation: APIOperation, vertex: str, fixed: set[str]) -> st.SearchStrategy[Case]:
    """Draw requests of an operation. Where it names a job, that is most often one that is there.

    Hypothesis also draws strings that it finds in the code. A job whose id is "overview" would be asked for at
    /jobs/overview, which is another operation's path.
    """
    known: list[dict[str, Any]] = [{}]
    if "{jobid}" in operation.path:
        known += [{"jobid": RUNNING}]
        known += [{"jobid": job, "checkpointid": 2, "vertexid": vertex} for job in (RUNNING, ENDED)]
    named = [{name: value for name, value in values.items() if f"{{{name}}}" in operation.path} for values in known]
    drawn = [operation.as_strategy(mode, path_parameters=values) for mode in MODES for values in named]
    return st.one_of(drawn).filter(lambda case: fixed.isdisjoint(map(str, case.path_parameters.values())))


@dataclass
class Attack:
    attacked: AttackedDaemon
    session: requests.Session
    statuses: Counter[int] = field(default_factory=Counter)
    answered: set[str] = field(default_factory=set)  # operations that did what they are for

    def get(self, path: str) -> Any:
        return self.session.get(f"{self.attacked.url}{path}", timeout=60).json()

    def on(self, operation: APIOperation, drawn: st.SearchStrategy[Case]) -> None:
        always_refused = operation.definition.raw["summary"].startswith("Refused")  # by its path alone
        may_be_refused = always_refused or operation.label in MEANINGFUL
        checks = [*CHECKS, blameless, *([] if may_be_refused else [positive_data_acceptance])]

        @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
        @given(case=drawn)
        def ask(case: Case) -> None:
            response = case.call(base_url=self.attacked.url, session=self.session, timeout=60)
            case.validate_response(response, checks=checks)
            self.statuses[response.status_code] += 1
            if response.status_code < 300:
                self.answered.add(operation.label)

        ask()


def test_each_request_is_answered_as_the_document_says(
    attacked: AttackedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fault of the daemon's, no status that is not described, and answers that fit their schemas (E5, E45)."""
    monkeypatch.setattr(access, "DELAY", 0.0)  # tokens that are drawn are wrong
    with requests.Session() as session, watched(attacked.thread) as longest:
        session.headers.update(attacked.headers)
        attack = Attack(attacked, session)
        described = schemathesis.openapi.from_dict(without_tokens(attack.get("/openapi.json")))
        (task,) = attack.get(f"/jobs/{RUNNING}/plan")["plan"]["nodes"]
        operations = [found.ok() for found in described.get_all_operations()]
        operations.sort(key=lambda one: ORDER.index(one.label.partition(" ")[0]))
        fixed = words(operations)
        for operation in operations:
            if operation.path not in DEADLY and not operation.path.endswith("/events"):  # these do not end
                attack.on(operation, cases(operation, task["id"], fixed))
    assert longest.seconds < LONGEST, longest.callback
    assert attack.statuses.total() > 800, attack.statuses
    assert len(attack.answered) > 30, attack.answered
