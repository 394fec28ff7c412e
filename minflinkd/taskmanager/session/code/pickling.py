"""Sends functions of jobs to Spark's Python workers.

cloudpickle sends a function that cannot be imported (a closure, a lambda) by value. A worker then makes it with the
interpreter's own `__import__`; a function of a job must be made with the job's `__import__`.
"""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any

from pyspark.cloudpickle import cloudpickle


def send_functions_of_jobs(isolation: ModuleType) -> None:
    """Change how this process pickles functions, from now on. `isolation`: the module by the name that workers use."""
    plain = cloudpickle.Pickler._dynamic_function_reduce

    def reduce(self: Any, function: FunctionType) -> Any:
        reduced = plain(self, function)  # type: ignore[no-untyped-call]
        package = str(function.__globals__.get("__name__")).partition(".")[0]
        if not isolation.is_job(package):
            return reduced
        _, arguments, state, items, pairs, _ = reduced
        return isolation.make_function, (package, *arguments), state, items, pairs, isolation.set_function_state

    setattr(cloudpickle.Pickler, plain.__name__, reduce)
