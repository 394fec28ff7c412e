"""`python -m tests.shapes --seeds 0-29`: jobs of every shape, each compared with its batch (docs/development.md)."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.shapes.campaign import cluster_for_shapes, play
from tests.shapes.drawing import draw
from tests.shapes.job_files import write_job_of
from tests.shapes.planted import FAULTS, find, reduce_planted
from tests.shapes.playing import Verdict
from tests.shapes.reduction import reduced
from tests.shapes.shape import Shape

PER_CLUSTER = 100  # shapes
REDUCED = 3  # of the shapes that went wrong, at most so many are reduced
REDUCTION = 300.0  # seconds for each


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.shapes", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=range(30), help="first-last, or some: 3,17 (default: 0-29)")
    parser.add_argument("--no-reduction", action="store_true", help="do not look for the smallest job that goes wrong")
    parser.add_argument("--show", action="store_true", help="show the job files of the seeds, and run nothing")
    parser.add_argument("--keep", type=Path, help="a directory in which everything of what went wrong stays")
    parser.add_argument(
        "--planted", nargs="?", const="", metavar="NAME", help="break minflinkd on purpose (faults named like this)"
    )
    chosen = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore SIGINT
    if chosen.show:
        for seed in chosen.seeds:
            print(told(draw(seed)))
        return 0
    if chosen.keep is not None:
        chosen.keep.mkdir(parents=True, exist_ok=True)
    if chosen.planted is not None:
        return planted(chosen.planted, chosen.keep)
    return run(chosen.seeds, chosen.keep, reduce=not chosen.no_reduction)


def planted(wanted: str, keep: Path | None) -> int:
    """Play the shapes for the faults named like `wanted`. With `keep`, also reduce the shape that shows a fault."""
    missed = 0
    for name, fault in FAULTS.items():
        if wanted not in name:
            continue
        found = asyncio.run(find(fault))
        missed += not found
        print(f"{name}: {found[:200] or 'NOT FOUND'}", flush=True)
        if found and keep is not None:
            asyncio.run(reduce_planted(fault, int(found.split()[1]), keep))
    return int(bool(missed))


def run(wanted: Sequence[int], keep: Path | None, *, reduce: bool) -> int:
    began, verdicts = time.monotonic(), list[Verdict]()

    def note(verdict: Verdict) -> None:
        verdicts.append(verdict)
        _tell(verdict)

    try:
        for first in range(0, len(wanted), PER_CLUSTER):
            seeds = wanted[first : first + PER_CLUSTER]
            base = Path(tempfile.mkdtemp(prefix="shapes-", dir=keep))
            try:
                asyncio.run(play([draw(seed) for seed in seeds], base, note))
            finally:
                if keep is None:
                    shutil.rmtree(base, ignore_errors=True)
    except KeyboardInterrupt:
        print(f"interrupted; {len(wanted) - len(verdicts)} seeds were not played to their end")
        reduce = False
    code = summary(verdicts, time.monotonic() - began)
    if reduce:
        for verdict in [v for v in verdicts if not v.good][:REDUCED]:
            found = asyncio.run(smallest(verdict, keep))
            print(f"--- the smallest of seed {verdict.shape.seed}, {found.kind}: {shortened(found.why)}")
            print(told(found.shape), "\n".join(found.story), sep="\n", flush=True)
            if keep is not None:
                print(f"its files: {write_job_of(found.shape, keep / f'smallest-{found.shape.seed}')}", flush=True)
    return code


async def smallest(wrong: Verdict, keep: Path | None = None) -> Verdict:
    """Reduce a shape that went wrong. All attempts share one cluster, which takes longer to start than most of them."""
    base = Path(tempfile.mkdtemp(prefix="smaller-", dir=keep))
    attempts = itertools.count()
    async with cluster_for_shapes(base / "cluster") as cluster:

        async def attempt(shapes: list[Shape]) -> list[Verdict]:
            return await play(shapes, base / str(next(attempts)), lambda _: None, cluster=cluster)

        found = await reduced(wrong, attempt, seconds=REDUCTION)
    shutil.rmtree(base, ignore_errors=True)
    return found


def summary(verdicts: list[Verdict], took: float) -> int:
    kinds = Counter(verdict.kind for verdict in verdicts)
    refused = Counter(verdict.why for verdict in verdicts if verdict.kind == "refused")
    print(f"{len(verdicts)} seeds in {took:.0f} s: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()))
    for why, count in refused.most_common():
        print(f"  {count} refused: {why}")
    wrong = sorted((v for v in verdicts if not v.good), key=lambda v: v.shape.seed)
    for verdict in wrong:
        print(f"  seed {verdict.shape.seed} {verdict.kind}: {shortened(verdict.why, 400)}")
    return int(bool(wrong))


def told(shape: Shape) -> str:
    document = json.dumps(shape.document(Path("/data")), indent=1)
    done = ", ".join(shape.done) or "nothing"
    why = f"; to be refused: {shape.refused}" if shape.refused else ""
    return f"seed {shape.seed}: {done} is done to it{why}\n{document}\n# shape.py\n{shape.module()}"


def _tell(verdict: Verdict) -> None:
    name = f"seed {verdict.shape.seed}"
    if verdict.good:
        print(f"{name}: {verdict.kind} {verdict.why} {verdict.took:.1f} s", flush=True)
        return
    print(f"--- {name} {verdict.kind}: {shortened(verdict.why)}", flush=True)
    print("\n".join(verdict.story), flush=True)


def shortened(why: str, longest: int = 1_600) -> str:
    """Cut out the middle, not the end: a traceback names the error in its last line."""
    if len(why) <= longest:
        return why
    return f"{why[: longest // 2]}\n[...]\n{why[-longest // 2 :]}"


def _seeds(text: str) -> Sequence[int]:
    if "," in text:
        return [int(seed) for seed in text.split(",")]
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    sys.exit(main())
