"""What `writeStream` is in a recorded script: it has pyspark's methods, and starts nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame

from minflinkd.taskmanager.session.scripts.recording import Query, Recording

JOB_FILE = "write a job file for it: docs/porting.md has what each part of a script becomes"


class RecordingWriter:
    """Stands for pyspark's DataStreamWriter."""

    def __init__(self, frame: DataFrame, recording: Recording) -> None:
        self._recording = recording
        self._query = Query(frame=frame, line=recording.line())

    def format(self, source: str) -> RecordingWriter:
        self._query.format = source
        return self

    def option(self, key: str, value: Any) -> RecordingWriter:
        self._query.options[key] = ("true" if value else "false") if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: Any) -> RecordingWriter:
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> RecordingWriter:  # noqa: N802, N803 - pyspark's names
        self._query.mode = outputMode.lower()
        return self

    def partitionBy(self, *cols: Any) -> RecordingWriter:  # noqa: N802 - pyspark's name
        names = cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols
        self._query.partition_by = tuple(names)
        return self

    def clusterBy(self, *cols: Any) -> RecordingWriter:  # noqa: N802 - pyspark's name
        self._recording.refuse("clusterBy is not known to a job", JOB_FILE)
        return self

    def queryName(self, queryName: str) -> RecordingWriter:  # noqa: N802, N803 - pyspark's names
        self._query.name = queryName
        return self

    def trigger(self, **trigger: Any) -> RecordingWriter:
        self._query.trigger = {kind: value for kind, value in trigger.items() if value}
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], object]) -> RecordingWriter:  # noqa: N802 - pyspark's name
        self._query.function = func
        return self

    def foreach(self, f: Any) -> RecordingWriter:
        self._recording.refuse("foreach writes row by row, which a job does not do", "use foreachBatch")
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803 - pyspark's name
        partitionBy: str | list[str] | None = None,  # noqa: N803 - pyspark's name
        queryName: str | None = None,  # noqa: N803 - pyspark's name
        **options: Any,
    ) -> RecordedQuery:
        self.options(**options)
        if path is not None:
            self.option("path", path)
        if format is not None:
            self.format(format)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy(*([partitionBy] if isinstance(partitionBy, str) else partitionBy))
        if queryName is not None:
            self.queryName(queryName)
        self._recording.add(self._query)
        return RecordedQuery(self._recording, self._query.name)

    def toTable(self, tableName: str, **given: Any) -> RecordedQuery:  # noqa: N802, N803 - pyspark's names
        hint = "a job writes tables of Delta and Iceberg: docs/sinks.md"
        self._recording.refuse(f"toTable({tableName!r}) needs a catalog of Spark, which a job does not write to", hint)
        return RecordedQuery(self._recording, self._query.name)


class RecordedQuery:
    """Stands for the StreamingQuery of a query that is not started: it seems to run, and who waits ends the script."""

    isActive = True  # noqa: N815 - pyspark's name
    lastProgress = None  # noqa: N815 - pyspark's name

    def __init__(self, recording: Recording, name: str | None) -> None:
        self._recording = recording
        self.id = self.runId = str(uuid4())
        self.name = name
        self.status: dict[str, Any] = {"message": "recorded", "isDataAvailable": False, "isTriggerActive": False}
        self.recentProgress: list[Any] = []

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802 - pyspark's name
        self._recording.wait(limited=timeout is not None)
        return None if timeout is None else False

    def processAllAvailable(self) -> None:  # noqa: N802 - pyspark's name
        self._recording.wait(limited=True)

    def stop(self) -> None:
        pass

    def explain(self, extended: bool = False) -> None:
        pass

    def exception(self) -> None:
        pass
