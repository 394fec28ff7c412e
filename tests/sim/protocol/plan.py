"""What happens in a run: the cluster, the jobs, the network's weather and the faults.

All are drawn before the run begins (`drawing.py`), so a failing run can be repeated without some of its faults.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tests.sim.protocol.wire import Weather


@dataclass(frozen=True)
class JobPlan:
    at: float  # in seconds
    groups: tuple[int, ...]  # slots that each slot sharing group wants
    adaptive: bool = False  # it accepts fewer
    connected: bool = False  # its tasks exchange data: one region
    exclusive: bool = False
    version: str = ""  # of a library that no session holds twice; empty: it brings none
    fragile: bool = False  # it survives only one restart
    ends: float | None = None  # when it is cancelled or its input ends; None: at the end of the run
    bounded: bool = False  # its input ends
    narrows: bool = False  # with each handover to a new version, its groups want one slot less
    runs_on: bool = False  # with each handover its tasks run on, and get as many slots as the next version wants
    again: bool = False  # it is submitted again at once, under another id, when it has ended before the calm
    profiles: tuple[str, ...] = ()  # what each group wants of a slot (`profiles.PROFILES`)
    enlarges: bool = False  # with each handover to a new version, its groups want larger slots

    @property
    def code(self) -> str:
        """Return what tells versions apart whose tasks are not adopted by one another."""
        return "runs on" if self.runs_on else str((self.groups, self.profiles) if self.profiles else self.groups)


@dataclass(frozen=True)
class Storm:
    """The network's weather for a while."""

    at: float
    lasts: float
    weather: Weather


@dataclass(frozen=True)
class Cut:
    """Some pairs of parties do not reach each other for a while. `who`, `number` and `whom` say which."""

    at: float
    lasts: float
    who: str  # rm, jm or tm: cut off from ...
    number: int
    whom: str  # ... rm, jm, tm or all
    noticed: bool
    one_way: bool
    late: bool = False  # what is sent meanwhile is not lost: it arrives soon after the cut, in any order


@dataclass(frozen=True)
class Crash:
    """A crash of one or several processes.

    `what` is `rm`, `jm`, `daemon` (RM and all JMs), `tm`, `tm+rm`, `session`, or `stopped` and `daemon stopped` (a
    TaskManager, or RM and all JMs, by SIGSTOP). With `rm hangs` and `jm hangs`, another leader begins at once, and the
    old one continues after `lasts`. With `jm hands over`, a JobMaster stands down for the next one. With `end`, a job
    is cancelled or its input ends.
    """

    at: float
    lasts: float  # seconds until it is back
    what: str
    number: int


@dataclass(frozen=True)
class Parting:
    """A cut between the sender and the receiver of a message, from that message on: see `Cut`."""

    lasts: float
    noticed: bool = False
    one_way: bool = False  # only the message's way is cut
    late: bool = False


@dataclass(frozen=True)
class Ambush:
    """Crashes and bad luck at the moment at which a message of one kind is sent.

    `at` of its crashes counts from that moment. They hit the parties of the message, if they are of the right kind.
    """

    at: float
    waits: float  # seconds until it is given up
    message: str
    skipped: int  # number of such messages that pass before
    delays: tuple[float, ...]  # of the copies of the message that arrive; none: it is lost
    crashes: tuple[Crash, ...] = ()
    parted: Parting | None = None  # it is not `delays` then that decides about the message

    @property
    def lasts(self) -> float:
        over = [*self.delays, *(crash.at + crash.lasts for crash in self.crashes)]
        return self.waits + max([*over, self.parted.lasts if self.parted is not None else 0.0], default=0.0)


Fault = Storm | Cut | Crash | Ambush


@dataclass(frozen=True)
class Plan:
    seed: int
    slots_per_tm: int = 3
    min: int = 0
    standby: int = 0
    max: int = 6
    standalone: int = 0  # TaskManagers that start by themselves
    can_start: bool = True  # whether the ResourceManager can start others
    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 5.0
    hold_timeout: float = 8.0
    orphan_timeout: float = 20.0
    taskmanager_timeout: float = 8.0
    registration_timeout: float = 0.0  # of TaskManagers that are not standalone
    start_time: tuple[float, float] = (0.5, 3.0)  # seconds until one registers, and again until its session is ready
    start_failures: float = 0.0  # chance that a start fails
    task_time: float = 0.5  # most seconds that a task needs to start or to end
    task_failures: float = 0.0  # chance that a task fails after a while, until the calm
    storage_failures: float = 0.0  # chance that no restore point is found, or that a checkpoint fails the job
    ageing: float = 0.0  # chance that a session counts as aged when a task ends
    unkillable: float = 0.0  # chance that the launcher cannot kill a TaskManager
    tight: bool = False  # there is no room for all jobs at once
    encoded: bool = False  # every message is encoded and decoded
    profile: str = ""  # of the slots of TaskManagers that are started with the default size (`profiles.PROFILES`)
    standalone_profiles: tuple[str, ...] = ("",)  # of the slots of those that start by themselves, one after the other
    jobs: tuple[JobPlan, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def calm_at(self) -> float:
        """Return when the last fault is over and the last job has been submitted."""
        over = [fault.at + fault.lasts for fault in self.faults] + [job.at for job in self.jobs]
        return max([*over, *(job.ends for job in self.jobs if job.ends is not None)], default=0.0)

    def lines(self) -> list[str]:
        told = [f"{f.name}: {getattr(self, f.name)}" for f in fields(self) if f.name not in ("jobs", "faults")]
        return [*told, *(f"job {i}: {job}" for i, job in enumerate(self.jobs)), *map(str, self.faults)]
