"""Functions of jobs on their way to Spark's workers.

cloudpickle sends a function that no import finds - a closure, a lambda - by value, and makes it there with the
interpreter's own `__import__`. One of a job is made with the job's.
"""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any

from pyspark.cloudpickle import cloudpickle


def send_functions_of_jobs(isolation: ModuleType) -> None:
    """From now on, for all of this process. `isolation`: the module as workers import it."""
    plain = cloudpickle.Pickler._dynamic_function_reduce

    def reduce(self: Any, function: FunctionType) -> Any:
        reduced = plain(self, function)  # type: ignore[no-untyped-call]
        package = str(function.__globals__.get("__name__")).partition(".")[0]
        if not isolation.is_job(package):
            return reduced
        _, arguments, state, items, pairs, _ = reduced
        return isolation.make_function, (package, *arguments), state, items, pairs, isolation.set_function_state

    setattr(cloudpickle.Pickler, plain.__name__, reduce)
