"""The second stage of an attempt: its query starts in Spark, with the state stores of the attempt before it, if any."""

from __future__ import annotations

import time

from minflinkd.taskmanager.child.protocol import TaskRunning
from minflinkd.taskmanager.session.query.batches import MicroBatches
from minflinkd.taskmanager.session.query.building import BuiltTask
from minflinkd.taskmanager.session.query.ending import Ending
from minflinkd.taskmanager.session.query.running import Events, RunningQuery


def start(built: BuiltTask, events: Events, ending: Ending) -> tuple[RunningQuery, TaskRunning]:
    """Start the query. Returns the query and the answer to the supervisor. Then call `watch` on a thread of its own.

    If Spark does not start it, its error is raised. Nothing runs then, and `built` is released.
    """
    engine, attempt_id = built.engine, built.request.attempt_id
    began = time.monotonic()
    try:
        query = RunningQuery(built, events, ending)
        if isinstance(query.batches, MicroBatches):
            engine.callback.register(attempt_id, query.batches.process)
        try:
            for source in built.plan.inputs:
                source.bind(built.channels, lambda: engine.callback.called_by(attempt_id), query.batches.input_failed)
            query.open(built.stores_of)
        except BaseException:
            ending.stop()
            engine.callback.release(attempt_id)
            raise
    except BaseException:
        built.release()
        raise
    phases = {**built.phases, "start": time.monotonic() - began}
    partitions = built.start.partitions if built.plan.keeps_state else 0
    return query, TaskRunning(
        phases=phases, operators=built.plan.operators, moved=built.start.moved, partitions=partitions
    )
