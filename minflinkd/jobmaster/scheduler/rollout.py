"""How long each phase of bringing a job up took: for its first start, and for every recovery."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minflinkd.runtime.ids import TaskId


@dataclass(frozen=True)
class Rollout:
    """One start of the job. Times are seconds of the injected clock.

    `began` is when the job was submitted, failed, or decided to grow.
    """

    began: float
    cause: str = ""
    rescale: bool = False  # the job grows; no failure caused this
    checkpoint_id: int | None = None
    tasks: frozenset[TaskId] = frozenset()  # that were deployed last; the others ran on
    marks: tuple[tuple[str, float], ...] = ()

    def mark(self, phase: str, now: float) -> Rollout:
        """Record when the phase ended. Only the first mark of a phase counts."""
        if any(name == phase for name, _ in self.marks):
            return self
        return replace(self, marks=(*self.marks, (phase, now)))

    def seconds(self) -> dict[str, float]:
        """Return phase -> seconds from the beginning to the phase's end."""
        return {name: round(at - self.began, 4) for name, at in self.marks}
