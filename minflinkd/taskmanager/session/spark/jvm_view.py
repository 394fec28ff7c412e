"""What the session's JVM uses, and what its threads do, from `java/JvmView.java`: one call each."""

from __future__ import annotations

from typing import Any

import structlog
from py4j.protocol import Py4JJavaError

from minflinkd.rpc.messages import SampledStack, ThreadText
from minflinkd.rpc.messages.threads import DEEPEST, LONGEST_FRAME, MOST_STACKS, MOST_TEXT

log = structlog.get_logger(__name__)

PAUSE = 0.05  # seconds between two samples
_DRIVER, _PARTITION = "JVM: micro-batches", "JVM: partitions"


def figures(jvm: Any) -> dict[str, float]:
    """Return memory, collections and classes by their names, such as `heap.used_bytes`."""
    found = jvm.org.minflinkd.JvmView.figures()
    return {name: float(value) for name, value in (line.split("\t") for line in found.splitlines())}


def figures_or_none(jvm: Any) -> dict[str, float]:
    """Return the figures; none if the JVM cannot tell them. Whoever asks wants to know whether it answers at all."""
    try:
        return figures(jvm)
    except Py4JJavaError as error:
        log.debug("the JVM does not say what it uses", error=str(error)[:300])
        return {}


def threads(jvm: Any) -> list[ThreadText]:
    """Return the stacks of all threads, as far as they fit into an answer."""
    dump = str(jvm.org.minflinkd.JvmView.dump(DEEPEST, MOST_TEXT // 2))
    return [ThreadText(name=text.split('"')[1], text=text) for text in dump.split("\f") if text.startswith('"')]


def sample(jvm: Any, run: str, seconds: float) -> list[SampledStack]:
    """Sample the threads of a query's run for that long. Blocks."""
    samples = max(1, round(seconds / PAUSE))
    found = jvm.org.minflinkd.JvmView.sample(run, samples, round(PAUSE * 1000), DEEPEST - 1, MOST_STACKS // 2)
    return [stack_of(line) for line in str(found).splitlines()]


def stack_of(line: str) -> SampledStack:
    count, running, partition, *frames = line.split("\t")
    number = int(partition)
    label = _DRIVER if number < 0 else _PARTITION
    return SampledStack(
        frames=(label, *(frame[:LONGEST_FRAME] for frame in frames)),
        count=int(count),
        running=running == "1",
        partition=None if number < 0 else number,
    )
