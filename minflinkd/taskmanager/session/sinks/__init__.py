"""Sinks of micro-batches (J12, J13): one module for each kind of sink, and `task` for all sinks of a task together."""

from minflinkd.taskmanager.session.sinks.task import TaskSinks, make_sinks

__all__ = ["TaskSinks", "make_sinks"]
