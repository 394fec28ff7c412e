"""TaskManagers as child processes on this host. They outlive the daemon (R7, R11, A14).

Each has its own directory. It holds `log/`, which stays when the rest is removed, and `identity.json`, by which a later
daemon finds the process again: pid and start time, and a token that the process and all its children carry in their
environment. A pid alone may be reused. The token is no secret, only a name.

Exits are seen through a pidfd, for children and adopted processes alike, without a thread and without polling. When the
supervisor process ends, whatever is left of it (session child, JVM, Python workers) is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import psutil
import structlog

from minflinkd.resourcemanager.launcher import Launched, OnExit, StartFailed, StopFailed, with_last_words
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.runtime import homes
from minflinkd.runtime.errors import MALFORMED
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.runtime.system_user import call_as, system_user

log = structlog.get_logger(__name__)

TOKEN = "MINFLINKD_TASKMANAGER_TOKEN"  # noqa: S105  # the name of a variable
SYSTEMD = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}  # concern only systemd and the daemon
LOG = "taskmanager.log"
LAUNCH_TIMEOUT = 10.0  # seconds to wait for launches to end before living processes are listed
KILL_TIMEOUT = 30.0  # seconds from SIGKILL until nothing is left
LOG_TIMEOUT = 1.0  # seconds that the report of an exit waits for the end of the log
TAIL_BYTES = 2048  # of the log, in the reason of an exit

Command = Callable[[ResourceId, Path, TaskManagerSize | None], Sequence[str]]


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The content of identity.json."""

    token: str
    pid: int | None = None  # None: the daemon ended between writing this and starting the process
    created: float = 0.0  # seconds since 1970


@dataclass
class _Process:
    resource_id: ResourceId
    pid: int
    created: float
    token: str
    pidfd: int
    child: subprocess.Popen[bytes] | None  # None: adopted, perhaps from an earlier leadership of this process
    ended: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class ProcessLauncher:
    """A TaskManagerLauncher.

    `command` writes what a TaskManager of this size needs into its directory and returns its command line, which must
    contain no secret. It runs in a thread. `extra_directories`: what a TaskManager has outside its own directory; they
    are removed with it, as the user `run_as`. `grace`: seconds from asking a TaskManager to end to killing it. While
    `leads` returns False, this launcher starts and ends nothing: the next leader may have adopted the tasks (A11).
    """

    def __init__(
        self,
        *,
        directory: Path,
        command: Command,
        on_exit: OnExit,
        grace: float = 5.0,
        extra_directories: Callable[[ResourceId], Sequence[Path]] = lambda _: (),
        run_as: str = "",
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._directory = directory
        self._command = command
        self._on_exit = on_exit
        self._grace = grace
        self._extra_directories = extra_directories
        self._run_as = run_as
        self._leads = leads
        self._processes: dict[ResourceId, _Process] = {}
        self._launching: dict[ResourceId, asyncio.Task[None]] = {}
        self._tasks = TaskOwner("process launcher")
        self._adopting = asyncio.Lock()

    def working_directory(self, resource_id: ResourceId) -> Path:
        return self._directory / resource_id

    async def start(self, resource_id: ResourceId, size: TaskManagerSize | None = None) -> None:
        if not self._leads():
            raise StartFailed(f"{resource_id} is not started: it is not certain that this daemon leads")
        failures: list[Exception] = []
        # Use a separate task: a cancelled caller must not leave a process that nobody watches.
        launch = self._tasks.job(f"start {resource_id}", self._start(resource_id, size), on_error=failures.append)
        self._launching[resource_id] = launch
        launch.add_done_callback(lambda _: self._launching.pop(resource_id, None))
        await asyncio.shield(launch)
        if failures:
            raise StartFailed(f"the process of {resource_id} could not be started: {failures[0]}") from failures[0]

    async def stop(self, resource_id: ResourceId, *, kill: bool = False) -> None:
        process = self._processes.get(resource_id)
        if process is None or self._leaves(process):
            return
        if not kill and not process.ended:
            with contextlib.suppress(TimeoutError, ProcessLookupError):
                signal.pidfd_send_signal(process.pidfd, signal.SIGTERM)
                async with asyncio.timeout(self._grace):
                    await process.gone.wait()
        if not process.ended:
            if self._leaves(process):  # another daemon may have become the leader during `grace`
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its leader existed just now, so the group id is its own
        try:
            async with asyncio.timeout(KILL_TIMEOUT):
                await process.gone.wait()
        except TimeoutError as error:
            if process.ended:
                log.warning("an ended TaskManager's directory is not removed yet", resource_id=resource_id)
                return
            raise StopFailed(
                f"{resource_id} (pid {process.pid}) is still there {KILL_TIMEOUT:g} s after it was killed",
                hint="it may hang in the kernel, on a disk or a network file system that does not answer",
            ) from error

    def _leaves(self, process: _Process) -> bool:
        """Whether this daemon must not end the process, because another daemon may lead."""
        if self._leads():
            return False
        log.warning("a TaskManager is left to the leader", resource_id=process.resource_id)
        return True

    async def adopt(self) -> tuple[Launched, ...]:
        failures: list[Exception] = []
        # Use a separate task: a cancelled caller must not leave adopted processes that nobody watches.
        await asyncio.shield(self._tasks.job("adopt", self._adopt(), on_error=failures.append))
        if failures:
            raise failures[0]
        return self.living()

    async def _adopt(self) -> None:
        async with self._adopting:
            await self._launches()
            for process in await asyncio.to_thread(self._find_living):
                log.info("adopted a TaskManager", resource_id=process.resource_id, pid=process.pid)
                self._watch(process)

    def living(self) -> tuple[Launched, ...]:
        return tuple(Launched(p.resource_id, p.pid) for p in self._processes.values() if not p.ended)

    async def stop_all(self, *, adopted: bool = True) -> None:
        await self._launches()
        wanted = [p for p in self._processes.values() if not p.ended and (adopted or p.child is not None)]
        await asyncio.gather(*(self.stop(process.resource_id) for process in wanted))

    async def reap_leftovers(self) -> None:
        own = self._processes.keys() | self._launching.keys()
        left = [launched.resource_id for launched in await self.adopt() if launched.resource_id not in own]
        await asyncio.gather(*(self._reap(resource_id) for resource_id in left))

    async def _reap(self, resource_id: ResourceId) -> None:
        try:
            await self.stop(resource_id, kill=True)
        except StopFailed as error:  # it is watched, and dies as soon as it can
            log.error("a leftover is still there", resource_id=resource_id, error=str(error))

    async def aclose(self) -> None:
        """Leave the TaskManagers running, for the next daemon. Idempotent."""
        loop = asyncio.get_running_loop()
        self._tasks.abandon()  # an exit seen from now on could not be reported
        for process in self._processes.values():
            if process.ended:
                continue
            process.ended = True
            loop.remove_reader(process.pidfd)
            os.close(process.pidfd)
            if process.child is not None:
                # Otherwise Popen warns of, and may reap, what is no longer ours. The next launcher in this process
                # finds the process by its identity, and reaps it (`_reaped`).
                process.child.returncode = 0
        self._processes.clear()
        await self._tasks.aclose()

    # --- starting -------------------------------------------------------------------------------------------------

    async def _start(self, resource_id: ResourceId, size: TaskManagerSize | None) -> None:
        self._watch(await asyncio.to_thread(self._launch, resource_id, size))

    async def _launches(self) -> None:
        """Wait until no launch is under way. What a launch starts lives on, even if whoever asked for it does not."""
        if launches := tuple(self._launching.values()):
            _, stuck = await asyncio.wait(launches, timeout=LAUNCH_TIMEOUT)
            for launch in stuck:
                log.warning("a launch takes long", launch=launch.get_name(), seconds=LAUNCH_TIMEOUT)

    def _launch(self, resource_id: ResourceId, size: TaskManagerSize | None) -> _Process:
        home = self.working_directory(resource_id)
        home.mkdir(mode=0o700, parents=True)
        token = secrets.token_hex(16)
        child = None
        try:
            child = self._spawn(resource_id, home, token, size)
            created = psutil.Process(child.pid).create_time()
            _write_identity(home, Identity(token=token, pid=child.pid, created=created))
            return _Process(resource_id, child.pid, created, token, os.pidfd_open(child.pid), child)
        except BaseException:
            if child is not None:  # nobody would watch it
                _kill_group(child.pid)
                child.wait(KILL_TIMEOUT)
            homes.remove(home)
            self._remove_extra(resource_id)
            raise

    def _spawn(
        self, resource_id: ResourceId, home: Path, token: str, size: TaskManagerSize | None
    ) -> subprocess.Popen[bytes]:
        logs = home / homes.LOGS
        logs.mkdir()
        argv = list(self._command(resource_id, home, size))
        _write_identity(home, Identity(token=token))  # first, so that a crash never leaves an unknown process
        with (logs / LOG).open("ab") as out:
            return subprocess.Popen(
                argv,
                cwd=home,
                env={key: value for key, value in os.environ.items() if key not in SYSTEMD} | {TOKEN: token},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def _watch(self, process: _Process) -> None:
        self._processes[process.resource_id] = process
        asyncio.get_running_loop().add_reader(process.pidfd, self._ended, process)

    # --- ending ---------------------------------------------------------------------------------------------------

    def _ended(self, process: _Process) -> None:
        """The pidfd is readable: the process is a zombie, or was reaped by its parent."""
        asyncio.get_running_loop().remove_reader(process.pidfd)
        process.ended = True
        code: int | None = None
        if process.child is not None:
            _kill_group(process.pid)  # before it is reaped
            code = process.child.wait()
        else:
            code = _reaped(process.pidfd)
        os.close(process.pidfd)
        self._tasks.job(f"clean up after {process.resource_id}", self._bury(process, code))

    async def _bury(self, process: _Process, code: int | None) -> None:
        last_words = ""
        try:
            with contextlib.suppress(
                TimeoutError
            ):  # a disk that does not answer must not keep the exit from being reported
                async with asyncio.timeout(LOG_TIMEOUT):
                    last_words = await asyncio.to_thread(_tail, self.working_directory(process.resource_id))
            self._on_exit(process.resource_id, _reason(code, last_words))
        finally:
            try:
                await asyncio.to_thread(self._remove, process.resource_id, process.token)
            finally:
                self._processes.pop(process.resource_id, None)
                process.gone.set()

    def _remove(self, resource_id: ResourceId, token: str) -> None:
        """Remove everything of an ended TaskManager except its log."""
        left = list(_carriers(token))
        for stray in left:
            with contextlib.suppress(psutil.Error):
                stray.kill()
        psutil.wait_procs(left, timeout=5)
        homes.strip(self.working_directory(resource_id))
        self._remove_extra(resource_id)
        homes.prune(self._directory)

    def _remove_extra(self, resource_id: ResourceId) -> None:
        """Remove what it has outside its directory.

        This is done as the user of its sessions: their code may have put links there, or closed the directory.
        """
        user = system_user(self._run_as) if self._run_as else None
        for directory in self._extra_directories(resource_id):
            try:
                call_as(user, partial(homes.remove, directory))
            except OSError as error:
                log.warning("files of a TaskManager are left", directory=str(directory), error=str(error))

    # --- finding again --------------------------------------------------------------------------------------------

    def _find_living(self) -> list[_Process]:
        """Return the processes that an earlier launcher started and this one does not know.

        Remove what dead ones left.
        """
        found = []
        for home in homes.homes(self._directory):
            resource_id = ResourceId(home.name)
            if resource_id in self._processes or resource_id in self._launching:
                continue
            try:
                identity = msgspec.json.decode((home / "identity.json").read_bytes(), type=Identity)
            except FileNotFoundError:
                continue  # dead, and only its log is left
            except (OSError, *MALFORMED) as error:
                log.warning("a TaskManager's identity cannot be read", resource_id=resource_id, error=str(error))
                continue
            process = _find(resource_id, identity)
            if process is not None:
                found.append(process)
            else:
                log.info("a TaskManager ended while no daemon was there", resource_id=resource_id)
                self._remove(resource_id, identity.token)
        return found


def _find(resource_id: ResourceId, identity: Identity) -> _Process | None:
    """Return the living process of this identity.

    The pidfd is opened before the last check, so it is certainly its own. A process that ended while this daemon was a
    standby may be our child. Then it is reaped.
    """
    pid = identity.pid
    if pid is None:
        pid = next((p.pid for p in _carriers(identity.token) if _leads_session(p.pid)), None)
    if pid is None:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        process = psutil.Process(pid)
        created = process.create_time()
        known = identity.pid is None or abs(created - identity.created) < 2  # the boot time it counts from drifts
        if known and process.status() == psutil.STATUS_ZOMBIE:
            _reaped(pidfd)
        elif known and process.environ().get(TOKEN) == identity.token:
            return _Process(resource_id, pid, created, identity.token, pidfd, child=None)
    except psutil.Error:
        pass  # it ended just now, or belongs to somebody else
    os.close(pidfd)
    return None


def _reaped(pidfd: int) -> int | None:
    """Reap a process that has ended, if an earlier leadership of this process started it. Return its exit code.

    Return None if it is not our child.
    """
    try:
        found = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:  # it ended just now
        return False


def _carriers(token: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(TOKEN) == token:
                yield process


def _kill_group(leader: int) -> None:
    """Kill the process group of a child that was not reaped, so that nobody else can have its number."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _write_identity(home: Path, identity: Identity) -> None:
    new = home / "identity.json.new"
    new.write_bytes(msgspec.json.encode(identity))
    new.replace(home / "identity.json")


def _reason(exit_code: int | None, tail: str) -> str:
    """Return how the process ended, and why."""
    if exit_code is None:
        how = "its process ended"  # adopted: only its parent learns how
    elif exit_code < 0:
        how = f"its process was killed by {_signal_name(-exit_code)}"
    else:
        how = f"its process ended with exit code {exit_code}"
    return how if exit_code == 0 else with_last_words(how, tail)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


def _tail(home: Path) -> str:
    file = home / homes.LOGS / LOG
    try:
        with file.open("rb") as lines:
            lines.seek(max(0, file.stat().st_size - TAIL_BYTES))
            return lines.read().decode(errors="replace").strip()
    except OSError:
        return ""
