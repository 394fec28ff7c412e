"""Carries out the faults of a plan in the world: storms, cuts, crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minflinkd.rpc.network import RESOURCE_MANAGER, Address
from tests.sim.protocol.plan import Crash, Cut, Fault, Storm
from tests.sim.protocol.wire import CALM

if TYPE_CHECKING:
    from tests.sim.protocol.world import World


class Chaos:
    def __init__(self, world: World) -> None:
        self._world = world
        self._engine = world.universe.engine
        self._storms: list[Storm] = []

    def schedule(self, faults: tuple[Fault, ...]) -> None:
        for fault in faults:
            match fault:
                case Storm():
                    self._engine.at(fault.at, self._storm, fault)
                case Cut():
                    self._engine.at(fault.at, self._cut, fault)
                case Crash():
                    self._engine.at(fault.at, self._crash, fault)

    # --- weather and cuts --------------------------------------------------------------------------------------------

    def _storm(self, storm: Storm) -> None:
        self._world.universe.note("STORM begins: {}", storm.weather)
        self._storms.append(storm)
        self._world.universe.wire.weather = storm.weather
        self._engine.after(storm.lasts, self._storm_over, storm)

    def _storm_over(self, storm: Storm) -> None:
        self._storms.remove(storm)
        self._world.universe.wire.weather = self._storms[-1].weather if self._storms else CALM
        self._world.universe.note("STORM is over" if not self._storms else "STORM is over, another one goes on")

    def _cut(self, cut: Cut) -> None:
        one = self._address(cut.who, cut.number)
        others = self._others(cut.whom, cut.number)
        if one is None or not others:
            return
        there = [(one, other) for other in others]
        back = [(other, one) for other in others]
        pairs = there if cut.one_way and cut.number % 2 else back if cut.one_way else there + back
        self._world.universe.note("CUT {} from {}{}", one, tuple(others), " one way" if cut.one_way else "")
        for source, target in pairs:
            self._world.universe.wire.cut(source, target, noticed=cut.noticed)
        if cut.noticed:
            self._world.connections_failed([one, *others])
        self._engine.after(cut.lasts, self._heal, pairs, cut.noticed)

    def _heal(self, pairs: list[tuple[Address, Address]], noticed: bool) -> None:
        for source, target in pairs:
            self._world.universe.wire.heal(source, target, noticed=noticed)
        self._world.universe.note("HEALED {}", tuple(pairs))

    def _address(self, kind: str, number: int) -> Address | None:
        if kind == "rm":
            return RESOURCE_MANAGER
        parties = self._world.task_managers() if kind == "tm" else self._world.job_masters()
        return parties[number % len(parties)].address if parties else None

    def _others(self, kind: str, number: int) -> list[Address]:
        if kind == "all":
            return [RESOURCE_MANAGER, *(jm.address for jm in self._world.job_masters())]
        address = self._address(kind, number // 2)
        return [address] if address is not None else []

    # --- crashes -----------------------------------------------------------------------------------------------------

    def _crash(self, crash: Crash) -> None:
        world, engine = self._world, self._engine
        match crash.what:
            case "rm":
                world.crash_resource_manager(crash.lasts)
            case "daemon":
                world.crash_daemon(crash.lasts)
            case "rm hangs":
                world.replace_resource_manager(crash.lasts)
            case "jm" | "jm hangs":
                if masters := world.job_masters():
                    master = masters[crash.number % len(masters)]
                    fate = world.crash_job_master if crash.what == "jm" else world.replace_job_master
                    fate(master, crash.lasts)
            case _:
                if crash.what == "tm+rm":
                    world.crash_resource_manager(crash.lasts)
                living = world.task_managers()
                if not living:
                    return
                victim = living[crash.number % len(living)]
                if crash.what == "session":
                    victim.gate(victim.lose_session, crash.lasts)
                elif crash.what == "stopped":
                    world.universe.note("{} is STOPPED", victim.address)
                    victim.stop()
                    engine.after(crash.lasts, world.go_on, victim)
                else:
                    world.kill(victim)
