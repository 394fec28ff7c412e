"""Whether what a user asks for fits beside what they have (E46). No I/O, no clock.

What a user has follows from the records of the jobs that have not ended, so no counter can drift. A submission, or a
new version of a job, that is being checked is not in a record yet: it *claims* what it needs before anything is done
for it, in one step without an `await`. So of two requests at once only one gets the last place. A claim ends when its
job is stored, or was refused and is gone.

Jobs count what they want at their full parallelism, whatever an adaptive one runs with at present: it takes the rest
as soon as it is free. While one version replaces another, the job counts the wider of the two, and the files of both.
A file that was uploaded counts for who has uploaded it, until it is one of a job's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final

from minflinkd.blob.uploads import Upload
from minflinkd.config.quotas import KINDS, Limit, Quotas
from minflinkd.dispatcher.versions import Versions
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobmaster.scheduler.state import widths
from minflinkd.runtime.errors import Conflict
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.units import MemorySize

_NAMES: Final = {"jobs": "jobs that have not ended", "slots": "slots", "artifacts": "of artifacts"}


class QuotaExceeded(Conflict):
    """What was asked for is more than its user may have at present. Nothing was done."""

    code = "quota-exceeded"


@dataclass(frozen=True)
class Share:
    """What one job takes of its owner's quota. `artifacts`: their sizes in bytes, by the keys of their blobs."""

    slots: int = 0
    artifacts: Mapping[str, int] = field(default_factory=dict)

    def beside(self, other: Share) -> Share:
        """Return what the job takes while it may run as either of the two."""
        return Share(max(self.slots, other.slots), {**self.artifacts, **other.artifacts})


@dataclass(frozen=True)
class Counted:
    """A job that counts. `owner`: who has submitted it; empty for a job from before that was recorded."""

    job_id: JobId
    owner: str
    share: Share


@dataclass(frozen=True)
class Usage:
    """What a user has. `artifacts` in bytes."""

    jobs: int = 0
    slots: int = 0
    artifacts: int = 0


@dataclass(frozen=True)
class Balance:
    """One kind of a user's quota: what they have, and the limit."""

    used: int
    limit: Limit


def share_of(graph: JobGraph) -> Share:
    """Return what a version of a job takes. For a job with a thousand vertices, this is no work for an event loop."""
    return Share(sum(widths(chain(graph)).values()), {a.key: a.size for a in graph.artifacts if a.key is not None})


def share_of_versions(versions: Versions) -> Share:
    """Return what a job takes with all versions that may be brought up."""
    return reduce(Share.beside, map(share_of, versions.graphs))


def usage_of(user: str, jobs: Mapping[JobId, Counted], uploads: Iterable[Upload]) -> Usage:
    """Return what these jobs and uploads take of the user's quota."""
    shares = [job.share for job in jobs.values() if job.owner == user]
    uploaded = (up.size for up in uploads if up.user == user and not _is_of_a_job(up, jobs))
    return Usage(
        jobs=len(shares),
        slots=sum(share.slots for share in shares),
        artifacts=sum(sum(share.artifacts.values()) for share in shares) + sum(uploaded),
    )


def _is_of_a_job(upload: Upload, jobs: Mapping[JobId, Counted]) -> bool:
    job_id, key = upload.blob
    return job_id is not None and job_id in jobs and str(key) in jobs[job_id].share.artifacts


def refusal(user: str, before: Usage, after: Usage, quotas: Quotas) -> QuotaExceeded | None:
    """Return why a user with `before` may not have `after`; None if they may.

    Who has more than a limit, because it was lowered, may still ask for what does not need more of that kind.
    """
    reasons = []
    for kind in KINDS:
        limit, had, has = quotas.of(user, kind), getattr(before, kind), getattr(after, kind)
        if limit.most is not None and has > had and has > limit.most:
            most, used, more = (_figure(kind, figure) for figure in (limit.most, had, has - had))
            reasons.append(f"at most {most} {_NAMES[kind]}, has {used}, and this needs {more} more ({limit.option})")
    if not reasons:
        return None
    return QuotaExceeded(
        f"{user} may have {'; '.join(reasons)}",
        hint="cancel or stop a job, or ask for less; `minflinkd quotas` shows what counts. Uploads that no job uses "
        "count until they are deleted (blob.retention.interval). Whoever runs the daemon can raise the limit; a reload "
        "applies it",
    )


def more_bytes(usage: Usage, size: int) -> Usage:
    return replace(usage, artifacts=usage.artifacts + size)


class QuotaBook:
    """`quotas`: as they are configured now. `stored`: the jobs that have a record, and have not ended for good.

    `uploads`: what users have uploaded and no job has taken over.
    """

    def __init__(
        self,
        *,
        quotas: Callable[[], Quotas],
        stored: Callable[[], Iterable[Counted]],
        uploads: Callable[[], Iterable[Upload]] = tuple,
    ) -> None:
        self._quotas = quotas
        self._stored = stored
        self._uploads = uploads
        self._claims: dict[JobId, Counted] = {}

    def claim(self, job_id: JobId, owner: str, share: Share, *, keep: bool) -> None:
        """Claim what a version needs beside what the job has already. Raises QuotaExceeded: then nothing is claimed.

        `keep`: until `release`. Otherwise it is only found out whether the claim could be made.
        """
        if not owner:
            return
        wanted = Counted(job_id, owner, share)
        before, after = self.usage(owner), usage_of(owner, self._counted(wanted), self._uploads())
        if (refused := refusal(owner, before, after, self._quotas())) is not None:
            raise refused
        if keep:
            self._claims[job_id] = wanted

    def admit_upload(self, user: str, size: int) -> None:
        """Raises QuotaExceeded if the user may not have so many more bytes."""
        if self.limits_uploads(user):
            before = self.usage(user)
            if (refused := refusal(user, before, more_bytes(before, size), self._quotas())) is not None:
                raise refused

    def limits_uploads(self, user: str) -> bool:
        return self._quotas().of(user, "artifacts").most is not None

    def release(self, job_id: JobId) -> None:
        """What was claimed is in the job's record now, or is not wanted any more. Idempotent."""
        self._claims.pop(job_id, None)

    def usage(self, user: str) -> Usage:
        return usage_of(user, self._counted(), self._uploads())

    def balances(self, user: str) -> dict[str, Balance]:
        """Return what the user has beside what they may have, by kind."""
        usage, quotas = self.usage(user), self._quotas()
        return {kind: Balance(getattr(usage, kind), quotas.of(user, kind)) for kind in KINDS}

    def users(self) -> frozenset[str]:
        """Return everybody who has something, or a limit of their own."""
        owners = {job.owner for job in self._counted().values() if job.owner}
        return self._quotas().users | owners | {upload.user for upload in self._uploads()}

    def _counted(self, *more: Counted) -> Mapping[JobId, Counted]:
        """Return each job: what is in its record, with what is claimed for it, and with `more`."""
        found = {job.job_id: job for job in self._stored()}
        for claim in (*self._claims.values(), *more):
            present = found.get(claim.job_id)
            share = claim.share if present is None else present.share.beside(claim.share)
            found[claim.job_id] = Counted(claim.job_id, claim.owner, share)
        return found


def _figure(kind: str, figure: int) -> str:
    if kind != "artifacts":
        return str(figure)
    return str(MemorySize(figure)) if figure and figure % 1024 == 0 else f"{figure:,} bytes"
