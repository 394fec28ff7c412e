"""Which TaskManager the ResourceManager names as the hot standby of a job (R32)."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace as copy

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.rpc.messages import Library, SessionPhase
from minflinkd.runtime.ids import AllocationId, ResourceId
from tests.unit.resourcemanager.manager import JOB1, JOB2, LOST, TM1, TM2, TM3, A, C, Manager

FIXED = ResourceManagerOptions(slots_per_tm=2, standby=0, can_start=False)


def asks(manager: Manager, held: tuple[AllocationId, ...] = (A,), libraries: tuple[Library, ...] = ()) -> None:
    """JOB1 holds all that it needs, and asks for a hot standby."""
    declaration = copy(manager.declaration(JOB1, 1, held, "", False), hot_standby=True, libraries=libraries)
    manager.feed(ev.NeedsDeclared(declaration))


def test_another_taskmanager_with_room_is_named() -> None:
    """The job's own TaskManager is not: it is the one that may be lost (R32)."""
    manager = Manager(FIXED)
    manager.register(TM1, s0=A)
    manager.register(TM2)
    asks(manager)
    assert manager.answer().hot_standby == TM2


def test_a_job_that_does_not_ask_gets_none() -> None:
    """Nothing is prepared for it (R32)."""
    manager = Manager(FIXED)
    manager.register(TM1, s0=A)
    manager.register(TM2)
    manager.needs(JOB1, held=(A,))
    assert manager.answer().hot_standby is None


@pytest.mark.parametrize("lacking", ["nobody", "no room", "no session", "aged", "other libraries"])
def test_no_taskmanager_is_named_that_the_job_could_not_use(lacking: str) -> None:
    """An aged session is to be replaced, and would be kept by what is prepared in it (R32, R6a, B31)."""
    manager = Manager(FIXED)
    manager.register(TM1, s0=A, s1=A)
    if lacking == "no room":
        manager.register(TM2, s0=C)
    elif lacking == "no session":
        manager.register(TM2, LOST)
    elif lacking == "aged":
        manager.register(TM2, as_report=manager.report_with(TM2, session_aged=True))
    elif lacking == "other libraries":
        manager.register(TM2, as_report=manager.report_with(TM2, libraries=(Library("java:com/acme", "1"),)))
    asks(manager, libraries=(Library("java:com/acme", "2"),))
    assert manager.answer().hot_standby is None


@pytest.mark.parametrize("seed", range(60))
def test_the_named_taskmanager_is_the_one_that_the_job_gets(seed: int) -> None:
    """Whatever the cluster looks like, what was prepared is used, unless the cluster changes meanwhile (R32)."""
    draw = random.Random(seed)
    manager = Manager(ResourceManagerOptions(slots_per_tm=4, standby=0, can_start=False))
    wanted = draw.randint(1, 3)
    manager.register(TM1, slots=4, **{f"s{i}": A for i in range(wanted)})
    for number in range(2, 2 + draw.randint(0, 5)):
        manager.now += draw.random()
        tm = ResourceId(f"tm-{number}")
        taken = {f"s{i}": C for i in range(draw.choice([0, 0, 1, 2, 3]))}
        report = manager.report(tm, draw.choice([SessionPhase.READY, SessionPhase.READY, LOST]), 4, **taken)
        manager.register(tm, as_report=copy(report, session_aged=draw.random() < 0.2))
    if draw.random() < 0.5:
        manager.needs(JOB2, held=(C,))
    asks(manager)
    named = manager.answer().hot_standby
    manager.feed(ev.TaskManagerFailed(TM1, "killed"))
    commands = manager.needs(JOB1, version=2, b=wanted)
    given = [command.resource_id for command in commands if isinstance(command, ev.SendAllocate)]
    if named is not None:
        assert given == [named]
    else:
        aged = [tm for tm in given if manager.state.task_managers[tm].aged]
        assert given == aged


def test_the_standby_changes_with_the_cluster() -> None:
    """If it is lost or taken, the next one is named (R32)."""
    manager = Manager(FIXED)
    manager.register(TM1, s0=A)
    manager.register(TM2)
    manager.now += 1.0
    manager.register(TM3)
    asks(manager)
    first = manager.answer().hot_standby
    assert first is not None
    manager.feed(ev.TaskManagerFailed(first, "killed"))
    assert manager.answer().hot_standby == ({TM2, TM3} - {first}).pop()
