"""What a seed stands for: the cluster, the jobs, the network's weather and the faults.

All are drawn before the run begins, so a failing run can be repeated without some of its faults.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

from tests.sim.protocol.wire import Weather

CRASHES = ("rm", "jm", "jm", "daemon", "tm", "tm", "tm+rm", "session", "stopped", "rm hangs", "jm hangs")
HANGS = frozenset({"stopped", "rm hangs", "jm hangs"})


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


@dataclass(frozen=True)
class Crash:
    """A crash of one or several processes.

    `what` is `rm`, `jm`, `daemon` (RM and all JMs), `tm`, `tm+rm`, `session` or `stopped` (a TaskManager by SIGSTOP).
    With `rm hangs` and `jm hangs`, another leader begins at once, and the old one continues after `lasts`.
    """

    at: float
    lasts: float  # seconds until it is back
    what: str
    number: int


Fault = Storm | Cut | Crash


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


def drawn(seed: int) -> Plan:
    rng = random.Random(f"plan {seed}")
    slots_per_tm = rng.choice((2, 3, 4))
    jobs = tuple(_job(rng, slots_per_tm) for _ in range(rng.choice((1, 2, 2, 3, 3, 4))))
    rich = sum(len(job.groups) for job in jobs)
    standby = rng.choice((0, 0, 1, 2))
    tight = rng.random() < 0.25
    most = max(len(job.groups) for job in jobs) if tight else rich + standby + rng.choice((0, 1, 2))
    can_start = rng.random() < 0.92
    interval, timeout = rng.choice(((1.0, 3.0), (1.0, 5.0), (2.0, 5.0), (2.0, 5.0), (2.0, 6.0)))
    return Plan(
        seed=seed,
        slots_per_tm=slots_per_tm,
        min=rng.choice((0, 0, 1)),
        standby=standby,
        max=most,
        standalone=rng.choice((0, 0, 0, 1, 2)) if can_start else most,
        can_start=can_start,
        heartbeat_interval=interval,
        heartbeat_timeout=timeout,
        hold_timeout=rng.choice((4.0, 8.0)),
        taskmanager_timeout=rng.choice((3.0, 8.0)),
        registration_timeout=rng.choice((0.0, 0.0, 8.0)),
        start_time=rng.choice(((0.1, 0.5), (0.5, 3.0))),
        start_failures=rng.choice((0.0, 0.0, 0.2)),
        task_time=rng.choice((0.05, 0.5, 0.5, 2.0, 2.0, 6.0)),
        task_failures=rng.choice((0.0, 0.0, 0.1)),
        storage_failures=rng.choice((0.0, 0.0, 0.2)),
        ageing=rng.choice((0.0, 0.0, 0.3)),
        unkillable=rng.choice((0.0, 0.0, 0.5)),
        tight=tight,
        encoded=rng.random() < 0.05,
        jobs=jobs,
        faults=_faults(rng),
    )


def _job(rng: random.Random, slots_per_tm: int) -> JobPlan:
    at = rng.uniform(0.0, 5.0)
    return JobPlan(
        at=at,
        groups=tuple(rng.randint(1, slots_per_tm) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))),
        adaptive=rng.random() < 0.5,
        connected=rng.random() < 0.5,
        exclusive=rng.random() < 0.2,
        fragile=rng.random() < 0.15,
        ends=at + rng.uniform(3.0, 12.0) if rng.random() < 0.35 else None,
        bounded=rng.random() < 0.5,
        version=rng.choice(("", "", "", "one", "two")),
    )


def _faults(rng: random.Random) -> tuple[Fault, ...]:
    until = rng.choice((6.0, 10.0, 16.0))
    faults: list[Fault] = []
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.uniform(0.0, until)
        faults.append(Storm(at, rng.uniform(1.0, 10.0), _weather(rng)))
    faults += [_cut(rng, until) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        what = rng.choice(CRASHES)
        at = rng.uniform(0.5, until)
        lasts = rng.uniform(1.0, 10.0) if what in HANGS else rng.choice((0.1, 0.5, 2.0, 6.0))
        faults.append(Crash(at, lasts, what, rng.randrange(8)))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _weather(rng: random.Random) -> Weather:
    return Weather(
        drop=rng.choice((0.0, 0.05, 0.2, 0.5)),
        double=rng.choice((0.0, 0.1, 0.3)),
        late=rng.choice((0.0, 0.1, 0.3)),
        latest=rng.choice((0.5, 3.0, 12.0)),
    )


def _cut(rng: random.Random, until: float) -> Cut:
    who, whom = rng.choice((("tm", "all"), ("tm", "all"), ("tm", "rm"), ("tm", "jm"), ("jm", "rm")))
    return Cut(
        at=rng.uniform(0.5, until),
        lasts=rng.uniform(0.5, 12.0),
        who=who,
        number=rng.randrange(8),
        whom=whom,
        noticed=rng.random() < 0.4,
        one_way=rng.random() < 0.3,
    )
