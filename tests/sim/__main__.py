"""Run the simulation of the slot protocol over many seeds: `python -m tests.sim --seeds 0-9999`.

See docs/development.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from functools import partial

from tests.sim.protocol.drawing import drawn
from tests.sim.protocol.journal import cut
from tests.sim.protocol.planted import FAULTS, find
from tests.sim.protocol.run import Verdict, attempt, run

PROGRESS = 10.0  # seconds between two lines
STORIES = 3  # this many violations are told in full, the others in one sentence
WITHIN = 2_000  # a planted fault must be found within this number of seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=_range, default=range(1_000), help="first-last, or one (default: 0-999)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    parser.add_argument("--verbose", type=int, metavar="SEED", help="tell the whole story of this seed")
    parser.add_argument("--planted", action="store_true", help="break the code on purpose, and say when it was found")
    chosen = parser.parse_args()
    if chosen.verbose is not None:
        verdict = attempt(drawn(chosen.verbose), told=True)
        print("\n".join(verdict.story))
        return int(bool(verdict.violation))
    return planted(chosen.jobs) if chosen.planted else seeds(chosen.seeds, chosen.jobs)


def seeds(wanted: range, jobs: int) -> int:
    began = said = time.monotonic()
    done: list[Verdict] = []
    violations = 0
    with multiprocessing.Pool(jobs) as pool:
        for verdict in pool.imap_unordered(run, wanted, chunksize=10):
            done.append(verdict)
            if verdict.violation:
                violations += 1
                _tell(verdict, in_full=violations <= STORIES)
            if time.monotonic() - said >= PROGRESS:
                said = time.monotonic()
                print(f"{len(done)} of {len(wanted)} seeds, {violations} violations", flush=True)
    took = time.monotonic() - began
    print(
        f"{len(done)} seeds, {violations} violations, {sum(v.virtual for v in done):.0f} virtual seconds, "
        f"{sum(v.messages for v in done)} messages, {took:.1f} s, {len(done) / took:.1f} seeds/s"
    )
    return int(violations > 0)


def planted(jobs: int) -> int:
    with multiprocessing.Pool(jobs) as pool:
        for fault, verdict in zip(FAULTS, pool.imap(partial(find, within=WITHIN), FAULTS), strict=True):
            told = f"seed {verdict.seed}: {cut(verdict.violation.splitlines()[0])[:100]}" if verdict else "NOT FOUND"
            print(f"{fault:65} {told}", flush=True)
            if verdict is None:
                return 1
    return 0


def _tell(verdict: Verdict, *, in_full: bool) -> None:
    print(f"--- seed {verdict.seed}: {verdict.violation}", flush=True)
    if in_full:
        print("\n".join(verdict.story), flush=True)
        print(f"--- the unreduced run: python -m tests.sim --verbose {verdict.seed}", flush=True)


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    sys.exit(main())
