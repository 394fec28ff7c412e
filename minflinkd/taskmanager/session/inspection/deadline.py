"""Ends the Spark jobs of one reading when its time is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from minflinkd.taskmanager.child.protocol import StateReadExpired

_AGAIN = 0.5  # seconds: a job that begins just after a cancellation is cancelled by the next one


class Deadline:
    """The Spark jobs of one thread, and when they must have ended."""

    def __init__(self, spark: SparkSession, group: str, timeout: float) -> None:
        self._context = spark.sparkContext
        self._group = group
        self._timeout = timeout
        self._until = time.monotonic() + timeout
        self._over = threading.Event()
        self._done = threading.Event()

    def check(self) -> None:
        """Raises StateReadExpired."""
        if self._over.is_set() or time.monotonic() > self._until:
            raise StateReadExpired(
                f"the state could not be read within {self._timeout:g} s",
                hint="ask for one store, for fewer rows, or without totals; or allow more time",
            )

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Run the block's Spark jobs as a group that is cancelled in time. Raises StateReadExpired if it was."""
        self._context.setJobGroup(self._group, "state is read", interruptOnCancel=True)
        watch = threading.Thread(target=self._watch, name=f"deadline of {self._group}", daemon=True)
        watch.start()
        try:
            yield
        except (PySparkException, Py4JError):
            if self._over.is_set():
                self.check()
            raise
        finally:
            self._done.set()
            watch.join(timeout=10)
            for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
                self._context.setLocalProperty(name, None)  # type: ignore[arg-type]

    def _watch(self) -> None:
        if self._done.wait(max(self._until - time.monotonic(), 0.0)):
            return
        self._over.set()
        while True:
            with suppress(PySparkException, Py4JError):
                self._context.cancelJobGroup(self._group)
            if self._done.wait(_AGAIN):
                return
