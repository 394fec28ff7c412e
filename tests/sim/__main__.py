"""Run a simulation over many seeds: `python -m tests.sim --seeds 0-9999` plays the slot protocol.

With `--election` it plays several daemons, which elect a leader; the next leader adopts the tasks. See
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from tests.sim.election import drawing as election_drawing
from tests.sim.election import planted as election_planted
from tests.sim.election import run as election_run
from tests.sim.planting import Planted
from tests.sim.protocol import drawing, planted, run
from tests.sim.protocol.journal import cut
from tests.sim.protocol.run import Verdict

PROGRESS = 10.0  # seconds between two lines
STORIES = 3  # this many violations are told in full, the others in one sentence
WITHIN = 2_000  # a planted fault must be found within this number of seeds


class Simulation(NamedTuple):
    drawn: Callable[[int], Any]
    attempt: Callable[..., Verdict]
    run: Callable[[int], Verdict]
    faults: Mapping[str, Planted]
    find: Callable[..., Verdict | None]
    option: str = ""


PROTOCOL = Simulation(drawing.drawn, run.attempt, run.run, planted.FAULTS, planted.find)
ELECTION = Simulation(
    election_drawing.drawn,
    election_run.attempt,
    election_run.run,
    election_planted.FAULTS,
    election_planted.find,
    "--election ",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--election", action="store_true", help="play several daemons instead of the slot protocol")
    parser.add_argument("--seeds", type=_range, default=range(1_000), help="first-last, or one (default: 0-999)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.add_argument("--verbose", type=int, metavar="SEED", help="tell the whole story of this seed")
    parser.add_argument("--planted", action="store_true", help="break the code on purpose, and say when it was found")
    chosen = parser.parse_args()
    played = ELECTION if chosen.election else PROTOCOL
    if chosen.verbose is not None:
        verdict = played.attempt(played.drawn(chosen.verbose), told=True)
        print("\n".join(verdict.story))
        return int(bool(verdict.violation))
    return find_planted(played, chosen.jobs) if chosen.planted else play(played, chosen.seeds, chosen.jobs)


def play(played: Simulation, wanted: range, jobs: int) -> int:
    began = said = time.monotonic()
    done: list[Verdict] = []
    violations = 0
    with multiprocessing.Pool(jobs) as pool:
        for verdict in pool.imap_unordered(played.run, wanted, chunksize=10):
            done.append(verdict)
            if verdict.violation:
                violations += 1
                _tell(played, verdict, in_full=violations <= STORIES)
            if time.monotonic() - said >= PROGRESS:
                said = time.monotonic()
                print(f"{len(done)} of {len(wanted)} seeds, {violations} violations", flush=True)
    took = time.monotonic() - began
    print(
        f"{len(done)} seeds, {violations} violations, {sum(v.virtual for v in done):.0f} virtual seconds, "
        f"{sum(v.messages for v in done)} messages, {took:.1f} s, {len(done) / took:.1f} seeds/s"
    )
    return int(violations > 0)


def find_planted(played: Simulation, jobs: int) -> int:
    with multiprocessing.Pool(jobs) as pool:
        found = pool.imap(partial(played.find, within=WITHIN), played.faults)
        for fault, verdict in zip(played.faults, found, strict=True):
            told = f"seed {verdict.seed}: {cut(verdict.violation.splitlines()[0])[:100]}" if verdict else "NOT FOUND"
            print(f"{fault:65} {told}", flush=True)
            if verdict is None:
                return 1
    return 0


def _tell(played: Simulation, verdict: Verdict, *, in_full: bool) -> None:
    print(f"--- seed {verdict.seed}: {verdict.violation}", flush=True)
    if in_full:
        print("\n".join(verdict.story), flush=True)
        print(f"--- the unreduced run: python -m tests.sim {played.option}--verbose {verdict.seed}", flush=True)


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    sys.exit(main())
