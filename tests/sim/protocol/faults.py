"""Draws what goes wrong in a run: storms, cuts, crashes and ambushes."""

from __future__ import annotations

import random

from tests.sim.protocol.plan import Ambush, Crash, Cut, Fault, Storm
from tests.sim.protocol.wire import Weather

CRASHES = (
    *("rm", "jm", "jm", "daemon", "tm", "tm", "tm+rm", "session"),
    *("stopped", "daemon stopped", "rm hangs", "jm hangs", "jm hands over"),
)
HANGS = frozenset({"stopped", "daemon stopped", "rm hangs", "jm hangs"})
# Messages and answers of an allocation, an offer, a deployment, the end of one, and of who is there.
AMBUSHED = (
    *("AllocateSlots", "AllocateSlots", "SlotAnswer", "OfferSlots", "OffersAccepted", "DeployTask", "DeployTask"),
    *("TaskStateChanged", "CancelTask", "FreeSlots", "FreeSlots", "SlotsFree", "DeclareNeeds", "NeedsAnswer"),
    *("RegisterTaskManager", "Registered", "TaskManagerLost", "JobMasterEnded", "JobHeartbeatAnswer"),
)


def faults(rng: random.Random) -> tuple[Fault, ...]:
    until = rng.choice((4.0, 8.0, 12.0))
    drawn: list[Fault] = []
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.uniform(0.0, until)
        drawn.append(Storm(at, rng.uniform(1.0, 8.0), _weather(rng)))
    drawn += [_cut(rng, until) for _ in range(rng.choice((0, 1, 1, 2)))]
    for _ in range(rng.choice((0, 1, 1, 2))):
        began = rng.uniform(0.5, until)
        drawn += burst(rng, began, rng.choice((1, 1, 2, 3)))
    drawn += [ambush(rng, until) for _ in range(rng.choice((0, 1, 2, 3)))]
    return tuple(sorted(drawn, key=lambda fault: fault.at))


def burst(rng: random.Random, began: float, count: int) -> list[Crash]:
    """Return crashes close together."""
    crashes = []
    for _ in range(count):
        what = rng.choice(CRASHES)
        lasts = rng.uniform(0.5, 8.0) if what in HANGS else rng.choice((0.1, 0.5, 2.0, 5.0))
        crashes.append(
            Crash(began + rng.choice((0.0, 0.02, 0.1, 0.5, 2.0)) * rng.random(), lasts, what, rng.randrange(8))
        )
    return crashes


def ambush(rng: random.Random, until: float) -> Ambush:
    return Ambush(
        at=rng.uniform(0.0, until),
        waits=rng.uniform(1.0, 6.0),
        message=rng.choice(AMBUSHED),
        skipped=rng.choice((0, 0, 0, 1, 2)),
        delays=tuple(rng.choice((0.01, 0.2, 1.0, 4.0, 12.0)) * rng.random() for _ in range(rng.choice((0, 1, 1, 2)))),
        crashes=tuple(burst(rng, 0.0, rng.choice((0, 1, 1, 2)))),
    )


def _weather(rng: random.Random) -> Weather:
    return Weather(
        drop=rng.choice((0.0, 0.05, 0.2, 0.5)),
        double=rng.choice((0.0, 0.1, 0.3)),
        late=rng.choice((0.0, 0.1, 0.3)),
        latest=rng.choice((0.5, 3.0, 12.0)),
    )


def _cut(rng: random.Random, until: float) -> Cut:
    who, whom = rng.choice((("tm", "all"), ("tm", "rm"), ("tm", "jm"), ("tm", "jm"), ("jm", "rm")))
    return Cut(
        at=rng.uniform(0.5, until),
        lasts=rng.choice((rng.uniform(0.5, 4.0), rng.uniform(4.0, 12.0))),
        who=who,
        number=rng.randrange(8),
        whom=whom,
        noticed=rng.random() < 0.4,
        one_way=rng.random() < 0.4,
        late=rng.random() < 0.5,
    )
