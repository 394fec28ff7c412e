"""Restart strategies (R16) as pure values: whether a restart may follow this failure, and after what delay."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minflinkd.jobgraph.model import RestartKind, RestartStrategy


@dataclass(frozen=True)
class RestartHistory:
    """`failures` are the times, in seconds, of the failures that still count."""

    failures: tuple[float, ...] = ()
    backoff: float = 0.0
    attempts: int = 0


@dataclass(frozen=True)
class Verdict:
    """`delay` is in seconds, or None if the job must fail. `reason` says why."""

    delay: float | None
    history: RestartHistory
    reason: str = ""


def after_failure(strategy: RestartStrategy, history: RestartHistory, now: float, jitter: float) -> Verdict:
    """Decide what follows a failure at `now`. `jitter` is a random number in [-1, 1], passed in to keep this pure."""
    match strategy.kind:
        case RestartKind.NONE:
            return Verdict(None, history, "the restart strategy is `none`")
        case RestartKind.FIXED_DELAY:
            allowed = 1 if strategy.attempts is None else strategy.attempts
            if history.attempts >= allowed:
                return Verdict(None, history, f"{allowed} restarts (fixed-delay) are used up")
            return Verdict(strategy.delay, replace(history, attempts=history.attempts + 1))
        case RestartKind.FAILURE_RATE:
            recent = (*(t for t in history.failures if now - t <= strategy.failure_rate_interval), now)
            if len(recent) > strategy.max_failures_per_interval:
                interval = strategy.failure_rate_interval
                return Verdict(None, history, f"{len(recent)} failures within {interval} (failure-rate)")
            return Verdict(strategy.delay, replace(history, failures=recent))
        case RestartKind.EXPONENTIAL_DELAY:
            return _exponential(strategy, history, now, jitter)


def _exponential(strategy: RestartStrategy, history: RestartHistory, now: float, jitter: float) -> Verdict:
    last = history.failures[-1] if history.failures else None
    quiet = last is None or now - last > strategy.reset_backoff_threshold + history.backoff
    attempts = 0 if quiet else history.attempts
    if strategy.attempts is not None and attempts >= strategy.attempts:
        return Verdict(None, history, f"{strategy.attempts} restarts (exponential-delay) without a quiet time")
    grown = history.backoff * strategy.backoff_multiplier
    backoff = float(strategy.initial_backoff) if quiet else min(grown, float(strategy.max_backoff))
    delay = max(0.0, backoff * (1 + strategy.jitter_factor * jitter))
    return Verdict(delay, RestartHistory(failures=(now,), backoff=backoff, attempts=attempts + 1))
