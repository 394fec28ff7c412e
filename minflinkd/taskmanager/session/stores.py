"""State store providers of a stopped query: closed at once, instead of by and by (C10a, R6a), or handed over (H4).

Spark closes the providers of a query that ended at its next maintenance. Until then each keeps a RocksDB instance with
its memory, descriptors and local files, and maintenance may still write into the query's checkpoint directory.
"""

from __future__ import annotations

import time
from typing import Any

from py4j.protocol import Py4JJavaError

from minflinkd.taskmanager.session.java_classes import PACKAGE
from minflinkd.taskmanager.session.spark import Session

_OBJECT = "org.apache.spark.sql.execution.streaming.state.StateStore$"
_IN_MAINTENANCE = ("snapshotPartitions", "cleanupPartitions")
_UNLOADED = "unloadedProvidersToClose"
_CLEAN_LOOKS = 3  # in a row: between two, a provider may be on its way from one table into another
_LOOKS = 10  # at a table that changes all the time


class StateStores:
    """Reads the private tables of Spark's StateStore object by reflection: no public way lists them."""

    def __init__(self, session: Session) -> None:
        self._jvm = session.jvm
        self._elsewhere = session.config.on_cluster
        self._scheduler = session.spark.sparkContext._jsc.sc().taskScheduler()
        kind = self._jvm.org.apache.spark.util.Utils.classForName(_OBJECT, True, False)
        self._object = kind.getField("MODULE$").get(None)
        self._ours = getattr(self._jvm, f"{PACKAGE}.StateStores")
        self._fields: dict[str, Any] = {}
        for name in ("loadedProviders", "maintenanceTask", _UNLOADED, *_IN_MAINTENANCE):
            self._fields[name] = _member(kind, name)

    def await_tasks(self, run_id: str, timeout: float = 5.0) -> bool:
        """Until no Spark task of a query run that has ended runs: one that was killed ends later than its query, and

        may still write. Whether that was in time.
        """
        deadline = time.monotonic() + timeout
        while self._in_use(run_id):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def hand_over(self, run_id: str, to: str) -> int:
        """Let the open stores of a query run, of which no Spark task runs, be those of another; how many there were.

        Maintenance closes those of a run that has ended: what is to be kept open has another id before. A run that is
        none of Spark's is to be forgotten then.
        """
        uuid = self._jvm.java.util.UUID.fromString
        return int(self._ours.handOver(self._table("loadedProviders"), uuid(run_id), uuid(to)))

    def forget(self, run_id: str) -> None:
        """Spark knows no store of the run any more."""
        self._ours.forget(self._jvm.java.util.UUID.fromString(run_id))

    def close(self, run_id: str, timeout: float = 5.0) -> bool:
        """Close all providers of a query run that has ended. Blocks; True when none is loaded or in maintenance.

        Those of executors in other processes cannot be reached: they close with the executors' next maintenance.
        """
        if self._elsewhere:
            return False
        deadline = time.monotonic() + timeout
        if not self.await_tasks(run_id, timeout):
            return False
        clean = 0
        while clean < _CLEAN_LOOKS:
            clean = clean + 1 if self._has_nothing(run_id) and self._pass_over(deadline) else 0
            if time.monotonic() > deadline:
                return False
            if not clean:
                time.sleep(0.01)
        self.forget(run_id)
        return True

    def _has_nothing(self, run_id: str) -> bool:
        """Closes what is loaded. What maintenance has unloaded by itself waits in a queue, and is written once more."""
        waiting = [entry for entry in self._table(_UNLOADED).toArray() if _run_of(entry._1()) == run_id]
        if waiting and (task := self._table("maintenanceTask")) is not None:
            task.triggerNow(getattr(task, "triggerNow$default$1")())
        loaded = self._of(run_id, "loadedProviders")
        for provider in loaded:
            self._object.removeFromLoadedProvidersAndClose(provider)
        return not waiting and not loaded and not any(self._of(run_id, name) for name in _IN_MAINTENANCE)

    def _pass_over(self, deadline: float) -> bool:
        """Wait for the thread that hands out maintenance: it goes through copies, with what was there before."""
        task = self._table("maintenanceTask")
        if task is None:
            return True
        executor = _member(task.getClass(), "executor").get(task)
        milliseconds = max(round((deadline - time.monotonic()) * 1000), 1)
        try:
            nothing = self._jvm.java.lang.Thread()  # a Runnable: its turn comes when the pass is over
            executor.submit(nothing).get(milliseconds, self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS)
        except Py4JJavaError:  # not in time; or the thread is gone, and another one begins
            return False
        return True

    def _in_use(self, run_id: str) -> bool:
        """Whether a Spark task of the query still runs: its jobs have the run's id for their group."""
        running = self._scheduler.taskIdToTaskSetManager().elements()
        while running.hasMoreElements():
            properties = running.nextElement().taskSet().properties()
            if properties is not None and properties.getProperty("spark.jobGroup.id") == run_id:
                return True
        return False

    def loaded(self) -> int:
        return int(self._table("loadedProviders").size())

    def _table(self, name: str) -> Any:
        return self._fields[name].get(self._object)

    def _of(self, run_id: str, name: str) -> list[Any]:
        return [item for item in self._items(name) if _run_of(item) == run_id]

    def _items(self, name: str) -> list[Any]:
        """Without Spark's locks a copy may miss what is there, or end in nulls, while the table changes: so until two
        copies agree.
        """
        found = self._copied(name)
        for _ in range(_LOOKS):
            before, found = found, self._copied(name)
            if found == before:
                break
        return found

    def _copied(self, name: str) -> list[Any]:
        table = self._table(name)
        keys = (table.keySet() if name == "loadedProviders" else table).toArray(self._any_tag())
        return [key for key in keys if key is not None]

    def _any_tag(self) -> Any:
        return self._jvm.scala.reflect.ClassTag.AnyRef()


def _run_of(provider: Any) -> str:
    return str(provider.queryRunId().toString())


def _member(kind: Any, name: str) -> Any:
    """A private field of a Java class."""
    member = kind.getDeclaredField(name)
    member.setAccessible(True)
    return member
