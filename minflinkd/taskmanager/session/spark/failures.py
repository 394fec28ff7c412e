"""Describes failures of Spark or user code for the user: message, traceback, and whether a retry can help."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import py4j
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkException

from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind, MinflinkError, error_info
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.taskmanager.session.job_secrets import JobSecrets
from minflinkd.taskmanager.session.spark import refusals, schema_registry

E = TypeVar("E")

# Error classes (prefixes) that come back on every retry, since job, state and input are the same.
HOPELESS = (
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_SCHEMA",
    "STATE_STORE_UNSUPPORTED_OPERATION",
    "STATE_STORE_INVALID",
    "STATE_STORE_PROVIDER_DOES_NOT_SUPPORT",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "STREAM_FAILED.STATE",
    "UNSUPPORTED_STREAMING",
    "STREAMING_OUTPUT_MODE",
    "UNRESOLVED_",
    "TABLE_OR_VIEW_NOT_FOUND",
    "DATATYPE_MISMATCH",
    "UNSUPPORTED_DATA_SOURCE",
    "DATA_SOURCE_NOT_FOUND",
)

_PY4J = str(Path(py4j.__file__).parent)
_PLAN = re.compile(r";\n\s*['+!~A-Z].*", re.DOTALL)  # the plan that Spark prints after its message
_USER_FILE = re.compile(r"[^\"]*/job_[0-9a-f]{20}/")
_BAD_RECORD = re.compile(r"\[BAD_RECORD\] (.+)")  # from BadRecords.java
_OWN_FRAME = re.compile(r'  File "[^"]*/minflinkd_job_code\.py", line .*\n(    .*\n)*')


class BatchFailed(MinflinkError):
    """Tells Spark that a micro-batch failed here. The reason itself is kept in this process."""

    code = "batch-failed"


class QueryEnded(MinflinkError):
    """A query ended without having been told to. That is a failure even if Spark reports no exception (C10a)."""

    code = "query-ended"
    consequence = Consequence.RETRYABLE


_secrets = JobSecrets()  # of the session of this process; `hide` replaces it


def hide(secrets: JobSecrets) -> None:
    """From now on, descriptions of failures have none of the secrets that were looked up there."""
    global _secrets
    _secrets = secrets


def hidden(text: str) -> str:
    return _secrets.hidden(text)


def _without_secrets(describe: Callable[[E], ErrorInfo]) -> Callable[[E], ErrorInfo]:
    """Hide secrets in what a function describes: a driver may put an option of its connection into its message."""

    @wraps(describe)
    def described(error: E) -> ErrorInfo:
        return _secrets.hidden_in(describe(error))

    return described


def session_is_lost(error: BaseException) -> bool:
    """Whether py4j finds no JVM at the other end. The session child itself notices its death a little later."""
    if isinstance(error, Py4JNetworkError):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, OSError) and bool(frames) and frames[-1].filename.startswith(_PY4J)


def session_lost(error: BaseException) -> SessionLost:
    return SessionLost(f"the JVM does not answer any more: {_last_line(error)}")


def spark_message(error: BaseException) -> str:
    """Return Spark's message with its position in the SQL text, without the plan and the JVM's stack."""
    if isinstance(error, Py4JJavaError):  # pyspark has not converted it, and its text is the JVM's stack
        java = error.java_exception
        name, said = str(java.getClass().getSimpleName()), str(java.getMessage() or "")
        text = said if said.startswith("[") else f"{name}: {said}" if said else name
    else:
        text = str(error)
    return _PLAN.sub("", text.partition("\n\nJVM stacktrace:")[0]).strip()


def user_traceback(error: BaseException) -> str:
    """Return the traceback from the first frame of user code on, or all of it if there is no such frame."""
    frames = traceback.extract_tb(error.__traceback__)
    for position, frame in enumerate(frames):
        if _USER_FILE.match(frame.filename):
            head = "Traceback (most recent call last):\n"
            tail = "".join(traceback.format_exception_only(error))
            return in_users_words(head + "".join(traceback.format_list(frames[position:])) + tail)
    return in_users_words("".join(traceback.format_exception(error)))


def in_users_words(trace: str) -> str:
    """Name files as in the job's artifacts, and drop the frames of `isolation`."""
    return re.sub(f'File "{_USER_FILE.pattern}', 'File "', _OWN_FRAME.sub("", trace))


@_without_secrets
def build_failure(error: BaseException) -> ErrorInfo:
    """Describe why a task could not be built."""
    if isinstance(error, MinflinkError):
        return error_info(error)
    if session_is_lost(error):
        return session_lost(error).info()
    trace = user_traceback(error)
    if not isinstance(error, PySparkException | Py4JJavaError):
        return ErrorInfo(code="user-code", message=_last_line(error), kind=Kind.JOB, traceback=trace)
    message, hint = refusals.in_users_words(spark_message(error))
    if isinstance(error, AnalysisException):
        return ErrorInfo(code="spark-analysis", message=message, kind=Kind.JOB, hint=hint, traceback=trace)
    return ErrorInfo(code="user-code", message=message, kind=Kind.JOB, hint=hint, traceback=trace)


@_without_secrets
def batch_failure(error: BaseException) -> ErrorInfo:
    """Describe why a micro-batch failed on the Python side: in a sink, or in Spark when a sink called it."""
    if isinstance(error, PySparkException):
        return _spark_failure(str(error), _condition(error))
    if isinstance(error, Py4JJavaError):  # an exception of Spark's that PySpark has no class for
        return _java_failure(error.java_exception)
    info = error_info(error) if isinstance(error, MinflinkError) else None
    return info or ErrorInfo(
        code="user-code",
        message=_last_line(error),
        consequence=Consequence.RETRYABLE,
        kind=Kind.JOB,
        traceback=user_traceback(error),
    )


@_without_secrets
def input_failure(error: Exception) -> ErrorInfo:
    """Describe why an exchange could not be read. No user code runs there."""
    if isinstance(error, MinflinkError):
        return error_info(error)
    return ErrorInfo(code="spark-query", message=_last_line(error), consequence=Consequence.RETRYABLE, kind=Kind.JOB)


@_without_secrets
def query_failure(java_query: Any) -> ErrorInfo:
    """Describe why a query ended by itself, as the JVM says."""
    option = java_query.exception()
    if not option.isDefined():
        return QueryEnded("the query ended unexpectedly, and Spark gives no reason").info()
    return _java_failure(option.get())


def _java_failure(cause: Any) -> ErrorInfo:
    """Describe an exception in the JVM by its causes."""
    texts, condition = list[str](), ""
    while cause is not None and len(texts) < 20:
        texts.append(str(cause.getMessage() or cause.toString()))
        condition = _java_condition(cause) or condition
        cause = cause.getCause()
    root = next((text for text in reversed(texts) if "Traceback (most recent call last)" in text), "")
    if not root:  # if a file cannot be read, one cause names the file, and a deeper one the record
        named = next((position for position, text in enumerate(texts) if text.startswith("[FAILED_READ_FILE")), -1)
        sentences = [text.strip().splitlines()[0] for text in texts[named:] if text.startswith("[")]
        root = " ".join(dict.fromkeys(sentences)) if named >= 0 else texts[-1]
    return _spark_failure(root, condition)


def _spark_failure(text: str, condition: str) -> ErrorInfo:
    if (bad := _BAD_RECORD.search(text)) is not None:
        return ErrorInfo(
            code="bad-record",
            message=bad[1].strip(),
            consequence=Consequence.RETRYABLE,
            kind=Kind.JOB,
            hint="correct it where it comes from, or let the vertex drop such records or send them to a sink",
        )
    if (registry := schema_registry.error_in(text)) is not None:
        return error_info(registry)
    position = text.find("Traceback (most recent call last)")
    if position >= 0:
        trace = text[position:].partition("\n\nDriver stacktrace:")[0].rstrip()
        lines = [line for line in trace.splitlines() if line and not line.startswith((" ", "\t"))]
        trace = in_users_words(trace)
        return ErrorInfo(
            code="user-code", message=lines[-1], consequence=Consequence.RETRYABLE, kind=Kind.JOB, traceback=trace
        )
    hopeless = condition.startswith(HOPELESS)
    return ErrorInfo(
        code="spark-query",
        message=_PLAN.sub("", text.partition("\n\nDriver stacktrace:")[0].partition("\n\nJVM stacktrace:")[0]).strip(),
        consequence=Consequence.FATAL if hopeless else Consequence.RETRYABLE,
        kind=Kind.JOB,
        hint="the state or the query does not fit; a restart cannot help" if hopeless else "",
    )


def condition_of(error: Exception) -> str:
    """Return Spark's error condition, even if pyspark has not converted the error; "" if it has none."""
    if isinstance(error, PySparkException):
        return _condition(error)
    return _java_condition(error.java_exception) if isinstance(error, Py4JJavaError) else ""


def _condition(error: PySparkException) -> str:
    return error.getCondition() or ""


def _java_condition(throwable: Any) -> str:
    if not throwable.getClass().getName().startswith(("org.apache.spark", "org.apache.spark.sql")):
        return ""
    try:
        return str(throwable.getCondition() or "")
    except Exception:  # not every exception of Spark's has a condition
        return ""


def _last_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()
