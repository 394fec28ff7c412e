"""Carries out the faults of a plan in the world: storms, cuts, crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from minflinkd.rpc.network import RESOURCE_MANAGER, Address, job_master
from tests.sim.protocol.job_master import JobMasterParty
from tests.sim.protocol.plan import Ambush, Crash, Cut, Fault, Parting, Storm
from tests.sim.protocol.task_manager import TaskManagerParty
from tests.sim.protocol.wire import CALM, HELD_UP_WITHIN

if TYPE_CHECKING:
    from tests.sim.protocol.world import World


P = TypeVar("P", JobMasterParty, TaskManagerParty)


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
                    self._engine.at(fault.at, self.crash, fault)
                case Ambush():
                    self._engine.at(fault.at, self._lie_in_ambush, fault)

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
        self._part(pairs, cut)

    def _part(self, pairs: list[tuple[Address, Address]], cut: Cut | Parting) -> None:
        self._world.universe.note("CUT OFF: {}", tuple(pairs))
        late_until = self._engine.now + cut.lasts + HELD_UP_WITHIN if cut.late else 0.0
        for source, target in pairs:
            self._world.universe.wire.cut(source, target, noticed=cut.noticed, late_until=late_until)
        if cut.noticed:
            self._world.connections_failed(list(dict.fromkeys(address for pair in pairs for address in pair)))
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

    # --- ambushes ----------------------------------------------------------------------------------------------------

    def _lie_in_ambush(self, ambush: Ambush) -> None:
        spies, passed = self._world.universe.wire.spies, 0

        def spy(pair: tuple[Address, Address], message: object) -> tuple[float, ...] | None:
            nonlocal passed
            if type(message).__name__ != ambush.message:
                return None
            passed += 1
            if passed <= ambush.skipped:
                return None
            spies.remove(spy)
            near = (*pair, job_master(message.job_id)) if hasattr(message, "job_id") else pair
            for crash in ambush.crashes:
                self._engine.after(crash.at, self.crash, crash, near)
            if ambush.parted is None:
                return ambush.delays
            self._part([pair] if ambush.parted.one_way else [pair, pair[::-1]], ambush.parted)
            return None

        def give_up() -> None:
            if spy in spies:
                spies.remove(spy)

        spies.append(spy)
        self._engine.after(ambush.waits, give_up)

    # --- crashes -----------------------------------------------------------------------------------------------------

    def crash(self, crash: Crash, near: tuple[Address, ...] = ()) -> None:
        """Let it happen, to the parties at these addresses if possible."""
        world, engine = self._world, self._engine
        masters = _nearest(world.job_masters(), near)
        living = _nearest(world.task_managers(), near)
        match crash.what:
            case "rm":
                world.crash_resource_manager(crash.lasts)
            case "daemon":
                world.crash_daemon(crash.lasts)
            case "rm hangs":
                world.replace_resource_manager(crash.lasts)
            case "end":
                if masters:
                    world.end(masters[crash.number % len(masters)].job)
            case "daemon stopped":
                world.stop_daemon(crash.lasts)
            case "jm" | "jm hangs" | "jm hands over":
                if masters:
                    master = masters[crash.number % len(masters)]
                    match crash.what:
                        case "jm":
                            world.crash_job_master(master, crash.lasts)
                        case "jm hangs":
                            world.replace_job_master(master, crash.lasts)
                        case _:
                            world.stand_down(master)
            case _:
                if crash.what == "tm+rm":
                    world.crash_resource_manager(crash.lasts)
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


def _nearest(parties: list[P], near: tuple[Address, ...]) -> list[P]:
    return [party for party in parties if party.address in near] or parties
