"""Flink's metrics, as its REST API shows them: names, and values as texts."""

from __future__ import annotations

from minflinkd.rest.schemas.answer import Answer


class Metric(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """Without `value` where only the names were asked for."""

    id: str
    value: str | None = None


class AggregatedMetric(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """Only those aggregates that were asked for. `skew`: mean deviation from the mean, in percent of it."""

    id: str
    min: float | None = None
    max: float | None = None
    avg: float | None = None
    sum: float | None = None
    skew: float | None = None
