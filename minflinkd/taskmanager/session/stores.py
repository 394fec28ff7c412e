"""State store providers of a stopped query: closing them at once, instead of by and by (C10a, R6a).

Spark closes the providers of a query that ended at its next maintenance. Until then each keeps a RocksDB instance with
its memory, descriptors and local files, and maintenance may still write into the query's checkpoint directory.
"""

from __future__ import annotations

import time
from typing import Any

from minflinkd.taskmanager.session.spark import Session

_OBJECT = "org.apache.spark.sql.execution.streaming.state.StateStore$"
_IN_MAINTENANCE = ("snapshotPartitions", "cleanupPartitions")
_LOOKS = 10  # at a table that changes all the time


class StateStores:
    """Reads the private tables of Spark's StateStore object by reflection: no public way lists them."""

    def __init__(self, session: Session) -> None:
        self._jvm = session.jvm
        self._elsewhere = session.config.on_cluster
        self._scheduler = session.spark.sparkContext._jsc.sc().taskScheduler()
        kind = self._jvm.org.apache.spark.util.Utils.classForName(_OBJECT, True, False)
        self._object = kind.getField("MODULE$").get(None)
        self._fields: dict[str, Any] = {}
        for name in ("loadedProviders", *_IN_MAINTENANCE):
            member = kind.getDeclaredField(name)
            member.setAccessible(True)
            self._fields[name] = member

    def close(self, run_id: str, timeout: float = 5.0) -> bool:
        """Close all providers of a query run that has ended. Blocks; True when none is loaded or in maintenance.

        Those of executors in other processes cannot be reached: they close with the executors' next maintenance.
        """
        if self._elsewhere:
            return False
        deadline = time.monotonic() + timeout
        while self._in_use(run_id):  # a task that was killed ends later than its query, and may still begin a changelog
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        for provider in self._of(run_id, "loadedProviders"):
            self._object.removeFromLoadedProvidersAndClose(provider)
        while any(self._of(run_id, name) for name in _IN_MAINTENANCE):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return not self._of(run_id, "loadedProviders")

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
        return [item for item in self._items(name) if str(item.queryRunId().toString()) == run_id]

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
