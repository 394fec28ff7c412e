"""How many partitions the state of a task has. Pure.

Spark fixes the number with the first micro-batch of a query, and state is stored by it. Flink's name for such a number
is max-parallelism: it stays when the parallelism changes, and then no state has to be rewritten. Example: a job with
`max-parallelism: 8` and `parallelism: 2` has 8 partitions, of which 2 are computed at a time. With a parallelism of 4,
it continues with the same 8 partitions, 4 at a time.
"""

from __future__ import annotations


def partitions_of(parallelism: int, desired: int, highest: int | None, recorded: int = 0) -> int:
    """Return the number of partitions for the next attempt of a task.

    `parallelism`: of the attempt. `desired`: what the task wants; it has less while slots are lacking. `highest`: the
    job's max-parallelism, if it states one. `recorded`: partitions of the state that the attempt restores; 0: none.
    """
    wanted = max(desired, parallelism)
    if highest is not None:
        return max(highest, parallelism)
    return max(recorded, wanted)
