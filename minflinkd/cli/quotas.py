"""`minflinkd quotas`: what users have, beside what they may have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.output import print_json
from minflinkd.cli.text import print_table, size

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas.quotas import QuotaBalance, UserQuota


@click.command()
@connection_options
def quotas(connection: Connection) -> None:
    """Show your jobs, slots and artifacts beside the limits; an admin sees those of all users.

    Jobs that have not ended count, with the slots that they want at their full parallelism. Limits are in the daemon's
    configuration: security.quotas.

    \b
    Examples:
      minflinkd quotas
      minflinkd quotas --json | jq '.quotas[] | select(.jobs.used == .jobs.limit).user'
    """

    async def show(client: Client) -> None:
        from minflinkd.rest.schemas.quotas import Quotas

        found = await client.get("/quotas", Quotas)
        if connection.as_json:
            print_json(found)
        else:
            print_table(["USER", ">JOBS", ">SLOTS", ">ARTIFACTS"], map(_row, found.quotas), empty="No user is known.")

    connection.run(show)


def _row(quota: UserQuota) -> list[object]:
    return [quota.user, _told(quota.jobs, str), _told(quota.slots, str), _told(quota.artifacts, size)]


def _told(balance: QuotaBalance, figure: Callable[[int], str]) -> str:
    limit = "" if balance.limit is None else f" of {figure(balance.limit)}"
    return f"{figure(balance.used)}{limit}"
