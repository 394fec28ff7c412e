"""The daemon as a process, in Flink's form."""

from __future__ import annotations

from minflinkd.rest.schemas.answer import Answer


class RuntimeInfo(Answer, frozen=True, kw_only=True):
    """Flink's JVM. The daemon is a Python process."""

    version: str
    arch: str
    options: tuple[str, ...]


class Environment(Answer, frozen=True, kw_only=True):
    """`classpath`: where the daemon's modules come from."""

    jvm: RuntimeInfo
    classpath: tuple[str, ...]


class LogUrl(Answer, frozen=True, kw_only=True):
    url: str


class ThreadInfo(Answer, frozen=True, kw_only=True, rename="camel"):
    thread_name: str
    stringified_thread_info: str


class ThreadDump(Answer, frozen=True, kw_only=True, rename="camel"):
    thread_infos: tuple[ThreadInfo, ...]


class FlameNode(Answer, frozen=True, kw_only=True):
    """A frame, and in how many samples it was."""

    name: str
    value: int
    children: tuple[FlameNode, ...] = ()


class FlameGraph(Answer, frozen=True, kw_only=True, rename="camel"):
    """`end_timestamp`: when the samples were taken; -1: the task has ended; -3: they are being taken, ask again."""

    end_timestamp: int
    data: FlameNode | None
