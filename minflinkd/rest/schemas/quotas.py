"""What users have, beside what they may have."""

from __future__ import annotations

from minflinkd.rest.schemas.answer import Answer


class QuotaBalance(Answer, frozen=True, kw_only=True):
    """`limit`: None is no limit."""

    used: int
    limit: int | None = None


class UserQuota(Answer, frozen=True, kw_only=True):
    user: str
    jobs: QuotaBalance  # that have not ended
    slots: QuotaBalance  # that these want at their full parallelism
    artifacts: QuotaBalance  # bytes


class Quotas(Answer, frozen=True, kw_only=True):
    user: str  # who asks
    quotas: tuple[UserQuota, ...]  # an admin sees those of all users
