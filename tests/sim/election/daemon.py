"""A daemon in the election: the real elector, claims and records in a process of its own, and its leaderships."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.config.ha_options import HighAvailability, ZooKeeper
from minflinkd.ha.election import LEADS, Timing
from minflinkd.ha.elector import Elector
from minflinkd.ha.service import Member
from minflinkd.ha.zookeeper import cluster as zookeeper_cluster
from minflinkd.ha.zookeeper.cluster import ZooKeeperCluster
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import Address
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import IdSource, JobId, LeaderId
from minflinkd.runtime.units import Duration
from minflinkd.storage.location import Location
from tests.sim.election.process import Process, ProcessClock
from tests.sim.election.zookeeper import Client
from tests.sim.planting import patched
from tests.sim.protocol.party import Party

if TYPE_CHECKING:
    from tests.sim.election.world import ElectionWorld

BEGINNING = (0.05, 0.6)  # seconds until what a leader runs has started
CLOSING = (0.0, 0.3)  # seconds until it is closed
TRY_AGAIN = (0.1, 0.5)
LEAST_SILENCE = 0.5  # seconds that a stopped daemon has to be silent before TaskManagers look for another one


class Nowhere:
    """A route. It is only asked for: messages take the run's own wire."""

    async def ask(self, target: Address, request: Any, *, timeout: float, fence: LeaderId | None) -> Any:
        raise AssertionError(target)

    def tell(self, target: Address, notice: Any, *, fence: LeaderId | None) -> None:
        raise AssertionError(target)


@dataclass(eq=False)
class Leadership:
    """What a daemon runs as a leader: the parties of the slot protocol, under one epoch."""

    daemon: Daemon
    epoch: int
    ids: IdSource
    over: asyncio.Event
    network: LocalNetwork
    records: Location | None = None
    parties: dict[Address, Party[Any]] = field(default_factory=dict)
    turns: dict[JobId, StorageTurn] = field(default_factory=dict)
    everyone: list[Party[Any]] = field(default_factory=list)  # also those that were replaced
    began: bool = False
    ended: bool = False

    def add(self, party: Party[Any]) -> None:
        self.parties[party.address] = party
        self.everyone.append(party)

    def turn(self, job_id: JobId) -> StorageTurn:
        return self.turns.setdefault(job_id, StorageTurn(f"job {job_id}"))


class Daemon:
    """`number`: from 1. It starts, and starts again, as a new process."""

    def __init__(self, world: ElectionWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.name = f"daemon-{number}"
        self.leadership: Leadership | None = None
        self.closing = CLOSING
        self.starts = 0
        self.start()

    def __repr__(self) -> str:
        return self.name

    def start(self) -> None:
        world, plan = self.world, self.world.plan
        if world.ending:
            return
        self.starts += 1
        self.process = process = Process(world.universe, self.name, plan.paces[self.number - 1], world.rules.turned)
        world.processes.append(process)
        self.clock = ProcessClock(process)
        options = HighAvailability(
            zookeeper=ZooKeeper(session_timeout=Duration(plan.session_timeout)),
            renewal_interval=Duration(plan.renewal),
        )
        with process.running(), patched(zookeeper_cluster, "ZooKeeperSession", lambda _: self._new_client):
            self.cluster = ZooKeeperCluster(options, overflow=world.storage_of("/ha"), fingerprint="one")
            self.elector = Elector(
                self.cluster.ballot,
                member=Member(name=self.name, url=f"http://{self.name}"),
                timing=Timing(lease=options.lease, renewal=plan.renewal),
                lead=self._lead,
                step_down=self._step_down,
                clock=self.clock,
            )
            self.cluster.elector = self.elector
            self.elector.falls_with = world.rules.crashed
            process.spawn(self._take_part())
        world.universe.note("{} STARTS", self.name)

    def _new_client(self, _: str, *, on_disconnect: Any, on_expiry: Any, **__: Any) -> Client:
        self.client = Client(self.world.ensemble, self.process, on_disconnect, on_expiry)
        return self.client

    async def _take_part(self) -> None:
        await self.cluster.start()
        while True:
            with contextlib.suppress(MinflinkError):
                await self.cluster.cluster_id()
                break
            await asyncio.sleep(self._draw(TRY_AGAIN))
        await self.elector.start()

    # --- inspection --------------------------------------------------------------------------------------------------

    @property
    def acts(self) -> bool:
        """Whether it believes that it may act. A stopped process believes nothing, until it goes on."""
        epoch = self.elector.state.epoch
        return self.process.alive and not self.process.stopped and self.elector.leads(epoch)

    @property
    def serves(self) -> bool:
        """Whether a TaskManager that connects now finds a leader here."""
        leads = self.leadership is not None and self.leadership.began and not self.leadership.ended
        return leads and self.process.alive and not self.process.stopped and self.elector.state.phase in LEADS

    def keeps(self, leadership: Leadership) -> bool:
        """Whether the connection of a TaskManager lasts, to what it ran as this leader."""
        if leadership.ended or not self.process.alive:
            return False
        silent = self.world.universe.now - self.process.stopped_at if self.process.stopped else 0.0
        return silent < max(LEAST_SILENCE, self.world.plan.heartbeat_timeout)

    # --- leading -----------------------------------------------------------------------------------------------------

    def _lead(self, epoch: int) -> None:
        self.world.universe.note("{} LEADS with epoch {}", self.name, epoch)
        ids = IdSource(self.world.universe.rng, epoch=epoch)
        network = LocalNetwork(leads=lambda: self.elector.leads(epoch))
        network.default_route(Nowhere())
        self.leadership = leadership = Leadership(self, epoch, ids, asyncio.Event(), network)
        self.world.rules.leads(leadership)
        self.process.spawn(self._run(leadership))

    def _step_down(self, reason: str) -> None:
        self.world.universe.note("{} STEPS DOWN: {}", self.name, reason)
        if self.leadership is not None:
            self.leadership.over.set()

    async def _run(self, leadership: Leadership) -> None:
        begin = asyncio.create_task(self._begin(leadership))
        over = asyncio.create_task(leadership.over.wait())
        await asyncio.wait({begin, over}, return_when=asyncio.FIRST_COMPLETED)
        if begin.done() and (error := begin.exception()) is not None:
            if not isinstance(error, MinflinkError):
                raise error
            self.world.universe.note("{} cannot lead: {}", self.name, str(error))
            self.elector.resign(str(error))
            await asyncio.sleep(self._draw(TRY_AGAIN))
        begin.cancel()
        await over
        await asyncio.sleep(self._draw(self.closing))
        self.closing = CLOSING
        self._end(leadership)
        self.elector.stepped_down()

    async def _begin(self, leadership: Leadership) -> None:
        """Read the job store and start what a leader runs. Raises MinflinkError."""
        await asyncio.sleep(self._draw(BEGINNING))
        leadership.records = self.cluster.records(await self.cluster.cluster_id(), leadership.epoch).jobs
        jobs = await self.world.store.jobs(leadership)
        if not leadership.over.is_set() and not leadership.ended:  # it may have handed over meanwhile
            leadership.began = True
            self.world.begin_leadership(leadership, jobs)

    def _end(self, leadership: Leadership) -> None:
        if not leadership.ended:
            leadership.ended = True
            self.world.end_leadership(leadership)
        self.leadership = None

    # --- what happens to it ------------------------------------------------------------------------------------------

    def kill(self, lasts: float) -> None:
        """Kill -9. The session lasts until it expires."""
        if self.process.alive:
            self.world.universe.note("{} is KILLED", self.name)
            self._gone(lasts)

    def _gone(self, lasts: float) -> None:
        self.process.die()
        self.client.die()
        if self.leadership is not None:
            self._end(self.leadership)
        self.world.universe.engine.after(lasts, self._start_again)

    def _start_again(self) -> None:
        if not self.process.alive:
            self.start()

    def hand_over(self, lasts: float) -> None:
        """End in good order: the next leader need not wait for the session timeout."""
        self.process.gate(self._hand_over, lasts)

    def _hand_over(self, lasts: float) -> None:
        self.world.universe.note("{} HANDS OVER", self.name)
        self.process.spawn(self._leave(lasts))

    async def _leave(self, lasts: float) -> None:
        process = self.process
        await asyncio.sleep(self._draw(self.closing))
        if self.leadership is not None:
            self._end(self.leadership)
        await self.elector.aclose()
        await self.cluster.aclose()
        if process.alive:
            self._gone(lasts)

    def pause(self, lasts: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        if self.process.alive and not self.process.stopped:
            self.world.universe.note("{} is STOPPED", self.name)
            self.process.stop_for_now()
            for party in self._parties():
                party.stop()
            self.world.universe.engine.after(lasts, self._go_on, self.process)

    def _go_on(self, process: Process) -> None:
        if process.alive:
            self.world.universe.note("{} is CONTINUED", self.name)
            process.go_on()
            for party in self._parties():
                party.go_on()

    def cut(self, lasts: float) -> None:
        """Let nothing through between it and ZooKeeper."""
        client = self.client
        if not client.cut:
            self.world.universe.note("{} is CUT OFF from ZooKeeper", self.name)
            client.cut = True
            self.world.universe.engine.after(lasts, self._heal, client)

    def _heal(self, client: Client) -> None:
        self.world.universe.note("{} reaches ZooKeeper again", self.name)
        client.cut = False

    def _parties(self) -> list[Party[Any]]:
        leadership = self.leadership
        return [] if leadership is None else [party for party in leadership.everyone if party.alive]

    def _draw(self, between: tuple[float, float]) -> float:
        return self.world.universe.rng.uniform(*between)


@contextlib.contextmanager
def as_leader(world: ElectionWorld, leadership: Leadership) -> Iterator[None]:
    """Let new parties have ids of this leadership, and be found under it."""
    before, world.ids, world.making = world.ids, leadership.ids, leadership
    try:
        yield
    finally:
        world.ids, world.making = before, None
