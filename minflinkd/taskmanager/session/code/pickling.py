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
        package = _package(function)
        if not isolation.is_job(package):
            return reduced
        _, arguments, state, items, pairs, _ = reduced
        return isolation.make_function, (package, *arguments), state, items, pairs, isolation.set_function_state

    setattr(cloudpickle.Pickler, plain.__name__, reduce)


def _package(function: FunctionType) -> str:
    """Return the first part of the name of a function's module; for one of a script, the package of its job."""
    own = function.__globals__.get("__builtins__")
    job = getattr(own.get("__import__") if isinstance(own, dict) else None, "__self__", None)
    name = getattr(job, "package", None) or function.__globals__.get("__name__")
    return str(name).partition(".")[0]
