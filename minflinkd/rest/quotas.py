"""`/quotas`: what users have, beside what they may have."""

from __future__ import annotations

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.schemas.quotas import QuotaBalance, Quotas, UserQuota
from minflinkd.rpc import jobs as j


class QuotaRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/quotas",
                self.quotas,
                Role.VIEW,
                "What users have, beside what they may have",
                {200: Quotas},
                more=(
                    "Not in Flink. The `user` who asks, and `quotas`: for each `user` the `jobs`, `slots` and "
                    "`artifacts` (bytes), `used` and `limit` (null: none). An admin sees those of all users. See "
                    "[security.md](security.md#how-much-each-user-may-have)"
                ),
            )
        ]

    async def quotas(self, request: web.Request) -> web.Response:
        """Answer the quota of who asks; for an admin who is not limited to some jobs, those of all users."""
        identity = identity_of(request)
        everybody = identity.role >= Role.ADMIN and not identity.jobs
        found = await self._backend.dispatcher(j.GetQuotas(user=identity.name, everybody=everybody))
        return json_answer(Quotas(user=identity.name, quotas=tuple(map(_quota, found))))


def _quota(found: j.UserQuota) -> UserQuota:
    return UserQuota(
        user=found.user,
        jobs=_balance(found.jobs),
        slots=_balance(found.slots),
        artifacts=_balance(found.artifacts),
    )


def _balance(found: j.QuotaBalance) -> QuotaBalance:
    return QuotaBalance(used=found.used, limit=found.limit)
