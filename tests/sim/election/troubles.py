"""Carries out what happens to daemons and to their coordination service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minflinkd.ha.election import LEADS
from tests.sim.election.daemon import Daemon
from tests.sim.election.plan import Trouble

if TYPE_CHECKING:
    from tests.sim.election.world import ElectionWorld

LATE = 0.3  # seconds that a slow answer takes longer


class Troubles:
    def __init__(self, world: ElectionWorld) -> None:
        self._world = world
        self._engine = world.universe.engine

    def schedule(self, troubles: tuple[Trouble, ...]) -> None:
        for trouble in troubles:
            self._engine.at(trouble.at, self._happens, trouble)

    def _happens(self, trouble: Trouble) -> None:
        world, ensemble, lasts = self._world, self._world.ensemble, trouble.lasts
        daemon = self._whom(trouble.whom)
        match trouble.what:
            case "kill":
                daemon.kill(lasts)
            case "handover":
                daemon.hand_over(lasts)
            case "pause":
                daemon.pause(lasts)
            case "cut":
                daemon.cut(lasts)
            case "slow":
                client = daemon.client
                client.late = LATE
                self._engine.after(lasts, setattr, client, "late", 0.0)
            case "reset":
                daemon.client.drop("the connection was reset")
            case "answer lost":
                daemon.client.loses += 1
            case "slow end":
                daemon.closing = (lasts / 2, lasts)
            case "rm crash":
                world.crash_resource_manager(lasts)
            case "jm crash":
                masters = world.job_masters()
                if masters:
                    world.crash_job_master(masters[trouble.whom % len(masters)], lasts)
            case "quorum":
                ensemble.lose_quorum()
                self._engine.after(lasts, ensemble.regain_quorum)
            case "server":
                server = daemon.client.server or ensemble.servers[0]
                ensemble.cut_off(server)
                self._engine.after(lasts, ensemble.heal, server)

    def _whom(self, number: int) -> Daemon:
        daemons = self._world.daemons
        if number:
            return daemons[(number - 1) % len(daemons)]
        leading = [d for d in daemons if d.process.alive and d.elector.state.phase in LEADS]
        return leading[-1] if leading else daemons[0]
