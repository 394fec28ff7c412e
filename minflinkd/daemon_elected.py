"""A daemon that takes part in an election: it leads while it is elected, and is a standby at other times (A10 - A13).

It runs a new `Daemon` for each leadership. When the leadership ends, this `Daemon` hands over: TaskManagers and tasks
keep running, and the next leader adopts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping

import msgspec
import structlog

from minflinkd.config import Config
from minflinkd.config import directories as where
from minflinkd.config.cluster_options import Standby as RestStandby
from minflinkd.config.tls_options import tls_of
from minflinkd.config.values import socket_address
from minflinkd.daemon import READY_FILE, Daemon, DaemonInfo, Mandate
from minflinkd.daemon_access import Door, bind_local, new_door
from minflinkd.daemon_leadership import Leadership
from minflinkd.ha.election import Timing
from minflinkd.ha.elector import Elector
from minflinkd.ha.embedded import StateDirectory, cluster_secret
from minflinkd.ha.service import Member, ServiceRefused, ServiceUnavailable, told
from minflinkd.ha.standing import member_name
from minflinkd.ha.zookeeper.cluster import ZooKeeperCluster
from minflinkd.rest.guard import own_names
from minflinkd.rest.server import Listening, place
from minflinkd.rest.standby import StandbyServer
from minflinkd.rpc.door import RpcDoor
from minflinkd.runtime import listening
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.local_socket import LocalSocket
from minflinkd.runtime.supervision import FIRST_PAUSE, LONGEST_PAUSE
from minflinkd.storage.registry import Storages

LOOK = 1.0  # seconds between two checks of who leads
CONNECTING = 3.0  # seconds that a connection to ZooKeeper may take before a warning
CLOSING = 60.0  # seconds in which the components of a leadership must close
TAKEOVER = 60.0  # seconds in which an elected daemon must begin to lead; doubled each time it fails to
LONGEST_TAKEOVER = 960.0

log = structlog.get_logger(__name__)


class LocalJobsLeft(MinflinkError):
    """The state directory contains jobs that the daemons of a shared cluster would not see."""

    code = "local-jobs-left"
    consequence = Consequence.REFUSED


class TakeoverTooSlow(MinflinkError):
    """This daemon was elected, but a storage or another thing that it needs did not answer in time."""

    code = "takeover-too-slow"
    consequence = Consequence.RETRYABLE


class ElectedDaemon(Component):
    """Has the interface of `Daemon` for the process. `start` returns when it answers HTTP, as a standby."""

    def __init__(self, config: Config, environ: Mapping[str, str], kill: Callable[[], object] | None = None) -> None:
        """`kill` kills this process."""
        super().__init__("elected daemon")
        self.config = config
        self._kill = kill or _kill_this_process
        self.state_directory = where.state_directory(config, environ)
        self.handover_asked = asyncio.Event()
        self.changed = asyncio.Event()  # set whenever it begins or stops leading
        self._environ = environ
        self._clock = SystemClock()
        self._directory = StateDirectory(self.state_directory)
        self._storages = Storages(config.storage.options)
        self._sockets: list[socket.socket] = []
        self._local: LocalSocket | None = None
        self._http: Door | None = None
        self._door: RpcDoor | None = None
        self._standby: StandbyServer | None = None
        self._daemon: Daemon | None = None
        self._leadership: Leadership | None = None
        self._members: tuple[Member, ...] = ()
        self._looked_at = self._clock.monotonic()  # when ZooKeeper last answered who the members are
        self._leaderless_since: float | None = self._clock.monotonic()  # None: there is a leader
        self._follows = ""  # URL of the leader that this daemon last stood by for
        self._trouble = ""  # why this daemon cannot take part in the election, or could not lead
        self._hands_over = False
        self._pause = FIRST_PAUSE
        self._takeover = TAKEOVER

    @property
    def info(self) -> DaemonInfo:
        blobs = "" if self._daemon is None else self._daemon.blobs.url
        return DaemonInfo(self._url, blobs, self.state_directory, os.getpid(), elected=True, asks=self._asks)

    @property
    def _asks(self) -> bool:
        return self._http is None or self._http.access.asks

    @property
    def leads(self) -> bool:
        return self._daemon is not None

    @property
    def status(self) -> str:
        """In a few words, for systemd."""
        if self.leads:
            return f"leading; {self._url}"
        return f"standby, leader {leader}; {self._url}" if (leader := self._leader()) else f"no leader; {self._url}"

    async def _start(self) -> None:
        self._directory.take()
        self._require_no_local_jobs()
        config = self.config
        secret = cluster_secret(where.secret_file(config, self.state_directory), shared=True)
        self._http = new_door(config, self._environ, self.state_directory, secret)
        self._sockets = await listening.bind(place(config.rest.bind_address, config.rest.port))
        port = self._sockets[0].getsockname()[1]
        self._url = f"{'https' if config.rest_tls.enabled else 'http'}://{_host(config)}:{port}"
        self._local = bind_local(config, self._environ, port, self._http.local)
        if self._local is not None:
            self._sockets.append(self._local.socket)
        self._door = door = RpcDoor(
            _rpc_place(config), secret=secret, leader=self._leaders_rpc, tls=tls_of(config.internal_tls)
        )
        await door.start()
        overflow = self._storages.at(f"{where.ha_storage_uri(config, self.state_directory).rstrip('/')}")
        await self._storages.require_writable(overflow)
        self._cluster = cluster = ZooKeeperCluster(config.ha, overflow=overflow, fingerprint=_fingerprint(secret))
        self._elector = Elector(
            cluster.ballot,
            member=Member(name=member_name(), url=self._url, rpc=_rpc_address(config, door.endpoint[1])),
            timing=Timing(lease=config.ha.lease, renewal=float(config.ha.renewal_interval)),
            lead=self._lead,
            step_down=self._step_down,
        )
        self._elector.falls_with = self.crash
        cluster.elector = self._elector
        await cluster.start()
        await self._stand_by()
        await self._storages.at(str(self.state_directory / READY_FILE)).write_bytes(
            msgspec.json.encode({"url": self._url, "blob_url": "", "pid": os.getpid()})
        )
        self.tasks.loop("look who leads", self._look)
        self.tasks.job("take part", self._take_part(), on_error=self.crash)

    async def _stop(self) -> None:
        ends: list[Callable[[], Awaitable[object]]] = [self._leave_standby]
        if self._leadership is not None:
            ends.insert(0, functools.partial(self._leadership.aclose, hand_over=self._hands_over))
        if hasattr(self, "_elector"):
            ends += [self._elector.aclose, self._cluster.aclose]  # after the leadership: this lets the next daemon lead
        if self._door is not None:
            ends.append(self._door.aclose)
        for end in (*ends, self._storages.aclose):
            try:
                await end()
            except Exception:  # the other parts must end all the same, above all the claim
                log.exception("a part of the daemon did not end well")
        listening.close(self._sockets)
        if self._local is not None:
            self._local.close()
        if self._directory.held:  # otherwise the file belongs to another daemon
            with contextlib.suppress(OSError):
                (self.state_directory / READY_FILE).unlink()
        self._directory.release()

    async def before_stop(self) -> None:
        if self._daemon is not None:
            await self._daemon.before_stop()

    def hand_over(self) -> None:
        self._hands_over = True

    def apply(self, config: Config) -> None:
        self.config = config
        if self._daemon is not None:
            self._daemon.apply(config)

    async def read_tokens_again(self) -> None:
        """Raises nothing."""
        if self._http is not None:
            await self._http.read_tokens_again()

    def _require_no_local_jobs(self) -> None:
        """Raises LocalJobsLeft: jobs from before `high-availability.type` was set would silently stop running."""
        left = sorted(path.stem for path in (self.state_directory / "jobs" / "jobs").glob("*.json"))
        if left:
            raise LocalJobsLeft(
                f"{self.state_directory} has {len(left)} jobs from before high-availability.type was set, such as "
                f"{left[0]}",
                hint="start the daemon without the option, stop each job with a savepoint, then start the jobs from "
                "the savepoints",
            )

    async def _take_part(self) -> None:
        """Take part in the election as soon as ZooKeeper answers, if this daemon belongs to the cluster.

        A daemon of another cluster must not be elected: it could not lead, and would keep others from leading.
        """
        warned, connects_until = "", self._clock.monotonic() + CONNECTING
        while True:
            try:
                await self._cluster.cluster_id()
                break
            except Exception as error:  # retry after any error: this may be the only daemon that can lead
                self._trouble = _reason_of(error)
                connects = isinstance(error, ServiceUnavailable) and self._clock.monotonic() < connects_until
                if not connects and self._trouble != warned:
                    warned = self._trouble
                    log.warning("this daemon cannot take part in the election yet", error=warned)
            await self._clock.sleep(LOOK)
        self._trouble = ""
        if warned:
            log.info("this daemon takes part in the election now")
        await self._elector.start()

    # --- leading ---

    def _lead(self, epoch: int) -> None:
        if self.tasks.closed:  # it was elected while it ends, and is about to delete its claim
            return
        self._leadership = leadership = Leadership(epoch)
        self.tasks.job(f"leadership {epoch}", self._run(leadership), on_error=self.crash)

    def _step_down(self, reason: str) -> None:
        if self._leadership is not None:
            self._leadership.over.set()

    async def _run(self, leadership: Leadership) -> None:
        """Run the components of a leader until the leadership is over. Then TaskManagers and tasks keep running.

        Raises what `_close` and `_stand_by` raise. Then this process ends, and TaskManagers wait for the next leader.
        """
        pause = 0.0
        try:
            await self._begin(leadership)
            await leadership.over.wait()
        except Exception as error:
            unforeseen = None if isinstance(error, MinflinkError | OSError) else error
            log.error(
                "this daemon was elected and cannot lead",
                epoch=leadership.epoch,
                error=_reason_of(error),
                exc_info=unforeseen,
            )
            self._trouble = f"it was elected and could not begin to lead: {_reason_of(error)}"
            self._elector.resign(f"it could not begin to lead: {error}")  # lets another daemon lead meanwhile
            pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        await self._close(leadership)
        self._elector.member = msgspec.structs.replace(self._elector.member, leading_since_ms=0, epoch=0)
        await self._stand_by()
        await self._clock.sleep(pause)
        self._leadership = None
        self._elector.stepped_down()
        self._changed()

    async def _begin(self, leadership: Leadership) -> None:
        """Start the components of a leader, or return early if the leadership ends. Raises MinflinkError, OSError."""
        assert self._door is not None
        assert self._http is not None
        epoch, cluster_id = leadership.epoch, await self._cluster.cluster_id()
        records = leadership.records = self._cluster.records(cluster_id, epoch)
        mandate = Mandate(
            epoch=epoch,
            leads=lambda: self._elector.leads(epoch),
            cluster_id=cluster_id,
            records=records.jobs,
            sockets=self._sockets,
            http=self._http,
            url=self._url,
            door=self._door,
            members=lambda: self._members,
            trouble=lambda: self._elector.trouble,
            without_leader=self._without_leader(),
        )
        await self._leave_standby()
        daemon = Daemon(self.config, self._environ, mandate)
        daemon.handover_asked = self.handover_asked
        limit = asyncio.timeout(self._takeover)
        try:
            async with limit:
                if not await leadership.start(daemon):
                    return
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._too_slow(daemon) from error
        self._daemon = daemon
        self._leaderless_since = None
        self._trouble = ""
        self._pause, self._takeover = FIRST_PAUSE, TAKEOVER
        self._changed()
        now = self._clock.epoch_ms()
        member = msgspec.structs.replace(self._elector.member, leading_since_ms=now, epoch=epoch)
        with contextlib.suppress(MinflinkError):  # `_look` tries again
            await self._elector.describe(member)
        self._follows = ""
        log.info("leading", epoch=epoch, url=self._url)
        self.tasks.job("sweep of records", records.sweep())

    def _too_slow(self, daemon: Daemon) -> TakeoverTooSlow:
        waited, self._takeover = self._takeover, min(2 * self._takeover, LONGEST_TAKEOVER)
        return TakeoverTooSlow(
            f"after {waited:g} s it still waited for its {daemon.starting}",
            hint="check that this host reaches high-availability.storageDir and execution.checkpointing.dir, and that "
            "they answer",
        )

    async def _close(self, leadership: Leadership) -> None:
        """Close the leadership, or kill this process, which must not keep ports and memory for ever. Idempotent."""
        if self._daemon is not None:
            self._daemon = None
            self._leaderless_since = self._clock.monotonic()
        try:
            async with asyncio.timeout(CLOSING):
                await leadership.aclose(hand_over=True)
        except TimeoutError:
            log.critical(
                "the components of the leadership do not close; the process is killed",
                epoch=leadership.epoch,
                seconds=CLOSING,
                hint="perhaps a disk or a mount does not answer",
            )
            self._kill()

    def _changed(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    # --- standing by ---

    async def _stand_by(self) -> None:
        """Begin to answer HTTP as a standby. Idempotent."""
        if self._standby is not None or self.tasks.closed:
            return
        assert self._http is not None
        config, tls = self.config, tls_of(self.config.rest_tls)
        standby = StandbyServer(
            [each.dup() for each in self._sockets],
            listening=Listening(
                host=config.rest.bind_address,
                port=config.rest.port,
                allowed_hosts=own_names(config.rest.address, config.security.allowed_hosts),
                tls=tls.server(config.rest_tls.clients) if tls else None,
                tls_to_leader=tls.client if tls else None,
            ),
            access=self._http.access,
            leader=self._leader,
            trouble=lambda: self._trouble or self._elector.trouble,
            without_leader=self._without_leader,
            proxy=config.rest.standby is RestStandby.PROXY,
        )
        await standby.start()
        self._standby = standby

    async def _leave_standby(self) -> None:
        standby, self._standby = self._standby, None
        if standby is not None:
            await standby.aclose()

    async def _look(self) -> None:
        while True:
            try:
                members = await self._cluster.ballot.members()
                self._looked_at = self._clock.monotonic()
                if self.leads and self._elector.member not in members:  # an earlier `describe` failed
                    await self._elector.describe(self._elector.member)
            except MinflinkError as error:
                if isinstance(error, ServiceRefused):
                    self._elector.trouble = told(error)
                # No answer does not mean no leader: the leader's claim lasts longer than one lost answer.
                known = self._clock.monotonic() < self._looked_at + self.config.ha.zookeeper.session_timeout
                members = self._members if self.leads or known else ()
            if members != self._members:
                self._members = members
                self._changed()
            if not self.leads:
                self._note_leader()
            await self._clock.sleep(LOOK)

    def _note_leader(self) -> None:
        if leader := self._leader():
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = self._clock.monotonic()
        if leader and leader != self._follows:
            log.info("standing by", leader=leader)
        elif self._follows and not leader:
            log.warning(
                "no daemon leads; the tasks go on, and the next leader adopts them", leader_before=self._follows
            )
        self._follows = leader

    def _without_leader(self) -> float:
        return 0.0 if self._leaderless_since is None else self._clock.monotonic() - self._leaderless_since

    def _leader(self) -> str:
        """Return the URL of the leader; empty if none is known."""
        return "" if (member := self._leading_member()) is None else member.url

    def _leaders_rpc(self) -> str:
        """Return the address of the leader for TaskManagers; empty if none is known."""
        return "" if (member := self._leading_member()) is None else member.rpc

    def _leading_member(self) -> Member | None:
        for member in self._members[:1]:
            if member.leading_since_ms and member.url != self._url:
                return member
        return None


def new_daemon(config: Config, environ: Mapping[str, str]) -> Daemon | ElectedDaemon:
    return Daemon(config, environ) if config.ha.type == "none" else ElectedDaemon(config, environ)


def _reason_of(error: Exception) -> str:
    return told(error) if isinstance(error, MinflinkError) else f"{type(error).__name__}: {error}"


def _kill_this_process() -> None:
    """Kill the process instead of exiting, because an exit may wait. systemd starts the daemon again."""
    os.kill(os.getpid(), signal.SIGKILL)


def _host(config: Config) -> str:
    """Return the host name at which clients and other daemons reach the HTTP endpoint."""
    host = config.rest.address if config.rest.address != "localhost" else config.rest.bind_address
    return f"[{host}]" if ":" in host else host


def _rpc_place(config: Config) -> listening.Place:
    manager = config.jobmanager
    return listening.Place(manager.bind_host, tuple(manager.rpc_port), "jobmanager.bind-host", "jobmanager.rpc.port")


def _rpc_address(config: Config, port: int) -> str:
    """Return the address at which TaskManagers reach this daemon, from any host."""
    return socket_address(config.jobmanager.rpc_address or config.jobmanager.bind_host, port)


def _fingerprint(secret: bytes) -> str:
    """Return a value that differs between secrets, but does not reveal them."""
    return hmac.digest(secret, b"minflinkd cluster secret", hashlib.sha256).hex()
