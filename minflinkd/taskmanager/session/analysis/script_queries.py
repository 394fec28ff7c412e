"""Executes the script of a submission, to learn which vertices its job has."""

from __future__ import annotations

from typing import Any

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.rpc.messages import Analysis, JobContext, ScriptQueries
from minflinkd.taskmanager.session.code.libraries import JobCode
from minflinkd.taskmanager.session.spark.failures import build_failure, session_is_lost, session_lost
from minflinkd.taskmanager.session.spark.session import Session, activate

PLACE = "script"


def found(session: Session, job: JobContext, reference: str, code: JobCode) -> Analysis:
    """Call the function `reference`. What the script did wrong is in the answer's faults. Raises SessionLost."""
    spark = session.spark.newSession()
    activate(session, spark)
    try:
        for name, value in job.spark.items():
            spark.conf.set(name, value)
        with code.in_session(spark):
            told: dict[str, Any] = code.function(reference)(spark, dict(job.params))
        refusals, queries = told["refusals"], ScriptQueries(document=told["document"], notes=tuple(told["notes"]))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # user code may raise anything, even SystemExit
        if session_is_lost(error):
            raise session_lost(error) from error
        info = build_failure(error)
        fault = GraphFault(path=PLACE, problem=info.message, hint=info.hint, traceback=info.traceback)
        return Analysis(faults=(session.secrets.hidden_in_fault(fault),))
    faults = (GraphFault(path=PLACE, problem=r["problem"], hint=r["hint"], line=r["line"] or None) for r in refusals)
    return Analysis(faults=tuple(faults), script=queries)
