"""The one foreachBatch callback of a session child, shared by all queries, and the connections that queries call over.

pyspark registers a new Java proxy with every `foreachBatch`, and never removes one. Here there is only one proxy; a
micro-batch names its attempt in a setting of its session. Connections would pile up too: for each query's JVM thread,
py4j opens one to this process, with a thread here. They are closed when the attempt ends.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.session.spark.session import Session

ATTEMPT_KEY = "minflinkd.attempt"

Batch = Callable[[DataFrame, int], None]


class BatchCallback:
    """Calls the handler of the attempt that a micro-batch belongs to. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._handlers: dict[AttemptId, Batch] = {}
        self._connections: dict[AttemptId, dict[Any, Any]] = {}  # ours -> the JVM's end of it

    def register(self, attempt_id: AttemptId, handler: Batch) -> None:
        with self._lock:
            self._handlers[attempt_id] = handler
            self._connections[attempt_id] = {}

    def release(self, attempt_id: AttemptId) -> None:
        """Forget an ended attempt and end its threads here. Idempotent."""
        with self._lock:
            self._handlers.pop(attempt_id, None)
            connections = self._connections.pop(attempt_id, {})
        for ours, theirs in connections.items():
            with suppress(Py4JError, OSError):
                theirs.shutdown()  # otherwise py4j keeps its sockets in the JVM forever
            with suppress(OSError, AttributeError):  # the connection's thread then reads the end, and closes it
                ours.socket.shutdown(socket.SHUT_RDWR)

    def attach(self, writer: Any) -> None:
        """Make this the sink of a DataStreamWriter."""
        helper = self._session.jvm.org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchHelper
        helper.callForeachBatch(writer._jwrite, self)

    def call(self, java_frame: Any, epoch: int) -> None:
        """Process a micro-batch. The JVM calls this, on the Python thread that belongs to the query's JVM thread."""
        spark = SparkSession(self._session.spark.sparkContext, java_frame.sparkSession())
        attempt_id = AttemptId(java_frame.sparkSession().conf().get(ATTEMPT_KEY))
        self.called_by(attempt_id)
        with self._lock:
            handler = self._handlers.get(attempt_id)
        if handler is None:
            raise Py4JError(f"attempt {attempt_id} has ended")
        handler(DataFrame(java_frame, spark), epoch)

    def called_by(self, attempt_id: AttemptId) -> None:
        """Note the connection of a call from the attempt's query, to close it with the attempt. Call it every time."""
        ours = self._session.gateway._gateway_client.get_thread_connection()
        with self._lock:
            connections = self._connections.get(attempt_id)
        if connections is None or ours in connections:
            return
        theirs = self._session.gateway.java_gateway_server.getCallbackClient().getPerThreadConnection()
        with self._lock:
            connections[ours] = theirs

    class Java:
        implements = ("org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction",)
