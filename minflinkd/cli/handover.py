"""`minflinkd handover`: end the daemon, but leave its TaskManagers and tasks running for the next one."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import click

from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.output import print_json
from minflinkd.cli.processes import lives_here

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import ClusterInfo, LeaderInfo

_PAUSE = 0.1  # seconds between two looks
_PATIENCE = 60.0  # seconds for the daemon to end


@click.command()
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when the daemon has ended.")
@connection_options
def handover(connection: Connection, wait: bool) -> None:
    """End the daemon, but leave its TaskManagers and tasks running. The next daemon adopts them.

    Use it to restart a daemon that systemd does not run, for example with other options or as an upgrade. Start the
    next daemon on the same state directory within high-availability.orphan-timeout (10 min). Until then nothing is
    checkpointed or published. Under systemd, use `systemctl restart minflinkd`, which also starts the next daemon.
    With several daemons (high-availability.type), a standby leads next; the command prints which one.

    \b
    Examples:
      minflinkd handover
      minflinkd handover --no-wait
    """

    import asyncio

    async def end(client: Client) -> ExitCode:
        before = await _standing(client)
        pid = await client.hand_over()
        deadline = time.monotonic() + _PATIENCE
        if wait and before is not None and before.standbys and before.leader is not None:
            client.knows_also(standby.url for standby in before.standbys)  # --url may name only the daemon that ends
            leader = await _next_leader(client, before.leader.epoch, deadline)
            if connection.as_json:
                print_json({"pid": pid, "ended": True, "leader": leader.name, "epoch": leader.epoch})
            else:
                click.echo(
                    f"{leader.name} leads now, at {leader.url} (epoch {leader.epoch}). TaskManagers and tasks keep "
                    "running."
                )
            return ExitCode.OK
        place = client.url  # another daemon of --url, or the next daemon at this address, may answer instead
        leader_url = before.leader.url if before is not None and before.leader is not None else place
        # It stops answering before it gives up the state directory. A standby may have forwarded the request to it.
        while wait and (
            await client.is_at(place, pid)
            or (leader_url != place and await client.is_at(leader_url, pid))
            or lives_here(place, pid)
        ):
            if time.monotonic() >= deadline:
                raise Failure(
                    f"The daemon (pid {pid}) has not ended after {_PATIENCE:g} s.\nSee its log.", ExitCode.UNREACHABLE
                )
            await asyncio.sleep(_PAUSE)
        if connection.as_json:
            print_json({"pid": pid, "ended": wait})
        else:
            said = f"The daemon (pid {pid}) has ended" if wait else f"The daemon (pid {pid}) is ending"
            click.echo(
                f"{said}. Its TaskManagers and tasks keep running: start the next daemon on the same state directory."
            )
        return ExitCode.OK

    connection.run(end)


async def _standing(client: Client) -> ClusterInfo | None:
    """Return the leader and the standbys, or None if the daemon's components do not answer: it can still hand over."""
    from minflinkd.cli.endpoint import Refused  # imports aiohttp

    try:
        return (await client.overview()).minflinkd
    except Refused:
        return None


async def _next_leader(client: Client, epoch: int, deadline: float) -> LeaderInfo:
    """Return the leader that follows the leadership of this epoch. Raises Failure if there is none in time."""
    import asyncio

    from minflinkd.cli.endpoint import DaemonUnreachable, Refused  # imports aiohttp

    while time.monotonic() < deadline:
        with contextlib.suppress(DaemonUnreachable, Refused):
            leader = (await client.overview()).minflinkd.leader
            if leader is not None and leader.epoch > epoch:
                return leader
        await asyncio.sleep(_PAUSE)
    raise Failure(
        f"No daemon leads {_PATIENCE:g} s after the handover.\nSee the logs of the standbys.",
        ExitCode.UNREACHABLE,
    )
