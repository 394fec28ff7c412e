"""Closes the state store providers of a stopped query at once (C10a, R6a), or hands them over to another query (H4).

Spark itself closes the providers of an ended query at its next maintenance. Until then each keeps a RocksDB instance
with its memory, descriptors and local files, and maintenance may still write into the query's checkpoint directory.
"""

from __future__ import annotations

import time
from typing import Any

from py4j.protocol import Py4JJavaError

from minflinkd.taskmanager.session.spark.java_classes import PACKAGE
from minflinkd.taskmanager.session.spark.session import Session

_OBJECT = "org.apache.spark.sql.execution.streaming.state.StateStore$"
_IN_MAINTENANCE = ("snapshotPartitions", "cleanupPartitions")
_UNLOADED = "unloadedProvidersToClose"
_CLEAN_LOOKS = 3  # in a row: a single look may miss a provider that moves from one table to another
_LOOKS = 10  # at most, at a table that keeps changing


class StateStores:
    """Reads the private tables of Spark's StateStore object by reflection, as no public API lists the providers."""

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
        """Wait until no Spark task of an ended query run is left. Returns whether that was in time.

        A task that was killed may end later than its query, and may still write until then.
        """
        deadline = time.monotonic() + timeout
        while self._in_use(run_id):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def hand_over(self, run_id: str, to: str) -> int:
        """Assign the open stores of a query run to another run. Returns how many there were.

        No Spark task of the run may be running. Maintenance closes the stores of a run that has ended, so stores that
        should stay open must get another run id first. If `to` is a made-up id and not a run of Spark's, the caller
        must `forget` it when it has no stores any more.
        """
        uuid = self._jvm.java.util.UUID.fromString
        return int(self._ours.handOver(self._table("loadedProviders"), uuid(run_id), uuid(to)))

    def forget(self, run_id: str) -> None:
        """Let Spark forget a run that has no stores any more."""
        self._ours.forget(self._jvm.java.util.UUID.fromString(run_id))

    def close(self, run_id: str, timeout: float = 5.0) -> bool:
        """Close all providers of an ended query run. Blocks. Returns whether none is loaded or in maintenance any more.

        Providers in executors of other processes cannot be reached: the executors' next maintenance closes them.
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
        """Close what is loaded, and return whether nothing was left to close.

        Providers that maintenance has unloaded by itself wait in a queue. Maintenance writes them once more and then
        closes them, so it is triggered here.
        """
        waiting = [entry for entry in self._table(_UNLOADED).toArray() if _run_of(entry._1()) == run_id]
        if waiting and (task := self._table("maintenanceTask")) is not None:
            task.triggerNow(getattr(task, "triggerNow$default$1")())
        loaded = self._of(run_id, "loadedProviders")
        for provider in loaded:
            self._object.removeFromLoadedProvidersAndClose(provider)
        return not waiting and not loaded and not any(self._of(run_id, name) for name in _IN_MAINTENANCE)

    def _pass_over(self, deadline: float) -> bool:
        """Wait until the thread that schedules maintenance has ended its pass. Returns whether that was in time.

        It works on copies of the tables, and so may still schedule maintenance for a provider that was removed.
        """
        task = self._table("maintenanceTask")
        if task is None:
            return True
        executor = _member(task.getClass(), "executor").get(task)
        milliseconds = max(round((deadline - time.monotonic()) * 1000), 1)
        try:
            nothing = self._jvm.java.lang.Thread()  # a Runnable without effect: it runs when the pass is over
            executor.submit(nothing).get(milliseconds, self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS)
        except Py4JJavaError:  # not in time; or the thread has ended, and another one starts
            return False
        return True

    def _in_use(self, run_id: str) -> bool:
        """Whether a Spark task of the query still runs. The job group of its jobs is the run's id."""
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
        """Copy a table until two copies in a row agree.

        Spark's locks are not held here: while the table changes, a copy may miss entries or end in nulls.
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
    """Return a private field of a Java class, made accessible."""
    member = kind.getDeclaredField(name)
    member.setAccessible(True)
    return member
