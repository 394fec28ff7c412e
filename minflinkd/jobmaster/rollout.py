"""How long each phase of bringing a job up took: for its first start, and for every recovery."""

from __future__ import annotations

from dataclasses import dataclass, replace

PHASES = ("canceled", "slots", "restore_point", "deployed", "running", "first_batch")


@dataclass(frozen=True)
class Rollout:
    """Times are seconds of the injected clock; `began` is the submission, the failure or the decision to grow."""

    began: float
    cause: str = ""
    rescale: bool = False  # the job grows: no failure began it
    checkpoint_id: int | None = None
    marks: tuple[tuple[str, float], ...] = ()

    def mark(self, phase: str, now: float) -> Rollout:
        """The first time counts; later marks of a phase change nothing."""
        if any(name == phase for name, _ in self.marks):
            return self
        return replace(self, marks=(*self.marks, (phase, now)))

    def seconds(self) -> dict[str, float]:
        """Phase -> seconds since the beginning until its end."""
        return {name: round(at - self.began, 4) for name, at in self.marks}
