"""What happens in a run with several daemons: that of the slot protocol, and troubles of daemons and their service."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.protocol.plan import Plan

# Of what one daemon suffers, by itself, nothing costs a task its attempt.
QUIET = ("kill", "kill", "handover", "cut", "reset", "answer lost", "pause", "slow", "jm crash", "rm crash")
ALL = (*QUIET, "quorum", "server", "slow end")


@dataclass(frozen=True)
class Trouble:
    """Something that happens to one daemon, to the one that leads, or to the coordination service.

    `what`:
    - `kill`: kill -9, and a new start after `lasts`; `handover`: it ends in good order and starts again;
    - `pause`: SIGSTOP for so long;
    - `cut`: nothing gets through between it and ZooKeeper; `reset`: the connection breaks; `slow`: answers come late;
    - `answer lost`: its next write is done, and the answer is lost with the connection;
    - `jm crash`, `rm crash`: a part of the leader crashes in a living daemon;
    - `quorum`: the servers of ZooKeeper have none; `server`: the one that it talks to is cut off from the others;
    - `slow end`: what it runs as a leader takes so long to close, next time.
    """

    at: float
    lasts: float
    what: str
    whom: int  # 0: the leader; otherwise the daemon with this number


@dataclass(frozen=True)
class ElectionPlan(Plan):
    session_timeout: float = 6.0
    renewal: float = 1.0
    paces: tuple[float, ...] = (1.0, 1.0, 1.0)  # of the daemons' clocks
    orphan_timeout: float = 60.0
    storage_delay: float = 0.05  # most seconds that a request to the storage takes
    checkpoint_interval: float = 1.0
    troubles: tuple[Trouble, ...] = ()
    quiet: bool = False  # nothing in it may cost a task its attempt

    @property
    def calm_at(self) -> float:
        return max([super().calm_at, *(trouble.at + trouble.lasts for trouble in self.troubles)])

    def lines(self) -> list[str]:
        told = [line for line in super().lines() if not line.startswith("troubles: ")]
        return [*told, *map(str, self.troubles)]
