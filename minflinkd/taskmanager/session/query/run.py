"""One run of an attempt's query in Spark, and the gate before its first micro-batch.

An attempt has several runs if its query is opened again. State stores belong to a run by its id, and Spark gives a run
its id when it starts. So stores that another run has left are handed over after the start, and until then the new run's
first micro-batch waits at the gate: otherwise Spark would open stores of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from minflinkd.taskmanager.session.spark.failures import QueryEnded, hidden
from minflinkd.taskmanager.session.state.stores import StateStores

log = structlog.get_logger(__name__)

_PATIENCE = 30.0  # seconds that a micro-batch waits at the gate; starting a query takes a small fraction of this


class SparkRun:
    """A query from its start in Spark until it ends. It never runs again."""

    def __init__(self, query: StreamingQuery) -> None:
        self.java: Any = query._jsq

    @property
    def id(self) -> str:
        return str(self.java.runId().toString())

    @property
    def execution(self) -> Any:
        """Spark's MicroBatchExecution."""
        return self.java.streamingQuery()

    def stop(self, attempt_id: str) -> bool:
        """Stop it. Blocks. Returns whether its thread is gone: not if user code does not return."""
        try:
            self.java.stop()
        except (PySparkException, Py4JError) as error:
            log.warning("a query does not stop cleanly", attempt=attempt_id, error=hidden(str(error)))
        return not self.execution.queryExecutionThread().isAlive()


class Gate:
    """Holds micro-batches back until their run is known, and has taken over the state stores of another run."""

    def __init__(self, stores: StateStores) -> None:
        self._stores = stores
        self._opened = threading.Event()
        self._run: SparkRun | None = None

    def start(self, start: Callable[[], SparkRun], stores_of: str | None) -> SparkRun:
        """Start a run, hand it the stores of the run id `stores_of`, and let its micro-batches begin.

        Whatever happens, nobody waits at the gate afterwards. If it raises, there is no run: one that had started is
        stopped, its stores are closed, and its micro-batches fail.
        """
        self._opened.clear()
        self._run = None
        run = None
        try:
            run = start()
            if stores_of is not None:
                stores = self._stores.hand_over(stores_of, run.id)
                self._stores.forget(stores_of)
                log.info("a query continues in open state stores", run=run.id, stores=stores)
            self._run = run
        except BaseException:
            self._opened.set()
            if run is not None:
                with suppress(PySparkException, Py4JError):
                    run.java.stop()
                    self._stores.close(run.id)
            raise
        self._opened.set()
        return run

    def run(self) -> SparkRun:
        """Return the run, once it may begin. Raises QueryEnded if it may not."""
        if (run := self.run_if_started()) is None:
            raise QueryEnded("the query was stopped, as its start failed")
        return run

    def run_if_started(self) -> SparkRun | None:
        """Return the run once it may begin; None if its start failed. Raises QueryEnded if that takes too long."""
        if not self._opened.wait(_PATIENCE):
            raise QueryEnded("the state stores of the attempt before it were not handed over")
        return self._run
