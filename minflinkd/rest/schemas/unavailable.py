"""Bodies and answers of what Flink has and minflinkd has not."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from minflinkd.rest.schemas.answer import Answer


class DataSet(Answer, frozen=True, kw_only=True, rename="camel"):
    id: str
    is_complete: bool


class DataSets(Answer, frozen=True, kw_only=True):
    data_sets: tuple[DataSet, ...] = msgspec.field(name="dataSets", default=())


class Profiling(Answer, frozen=True, kw_only=True, rename="camel"):
    status: str
    mode: str


class ProfilingList(Answer, frozen=True, kw_only=True, rename="camel"):
    profiling_list: tuple[Profiling, ...] = ()


class ProfilingRequest(Answer, frozen=True, kw_only=True):
    mode: Literal["CPU", "ALLOC", "LOCK", "WALL", "ITIMER"] = "CPU"
    duration: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 30


class ClientHeartbeat(Answer, frozen=True, kw_only=True):
    expired: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] = msgspec.field(name="expiredTimestamp", default=0)


class CoordinationRequest(Answer, frozen=True, kw_only=True):
    request: str = msgspec.field(name="serializedCoordinationRequest", default="")
