"""Python workers are forks of a process that has pandas, and share its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.spark.session_child import Child, call, job, python, rate, task

pytestmark = pytest.mark.spark

CODE = """
import json, os
import numpy as np

def drawn(inputs, params):
    def draw(frames):
        for frame in frames:
            yield frame.assign(worker=os.getpid(), parent=os.getppid(), drawn=np.random.rand())

    numbers = inputs["numbers"].select("value").repartition(4)
    return numbers.mapInPandas(draw, "value long, worker long, parent long, drawn double")


def write(batch, epoch):
    with open(%r, "a") as out:
        for row in batch.collect():
            out.write(json.dumps([row.worker, row.parent, row.drawn]) + "\\n")
"""


FORKS = """
import os, sys
from minflinkd.taskmanager.session.spark import worker_daemon

worker_daemon.import_ahead()
import numpy as np

def forked(act):
    read, write = os.pipe()
    if not os.fork():
        os.write(write, act().encode())
        os._exit(0)
    os.wait()
    return os.read(read, 100).decode()

def draw():
    return str(np.random.rand())

def seeded():
    np.random.seed(42)
    return forked(draw)

print(forked(draw), forked(draw), forked(seeded), forked(seeded))
"""


def test_what_a_worker_forks_keeps_the_seed_that_the_worker_has_set() -> None:
    """Only workers themselves get a new seed: a function that sets one may use multiprocessing."""
    run = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, timeout=120)
    one, two, of_a_seed, of_the_same = run.stdout.split()
    assert one != two
    assert of_a_seed == of_the_same


@pytest.mark.asyncio(loop_scope="session")
async def test_workers_share_the_pandas_of_their_parent_and_draw_different_numbers(
    child: Child, tmp_path: Path
) -> None:
    """A fork has the state of numpy's generator as well. Without a new seed, all workers would draw the same."""
    out = tmp_path / "drawn.jsonl"
    (tmp_path / "drawing.py").write_text(CODE % str(out))
    query = task(rate(100), python("drawn", "drawing:drawn", "numbers"), call("drawing:write", "drawn"))
    attempt = await child.run(job(), query, artifacts={"drawing.py": str(tmp_path / "drawing.py")})
    await child.batches(attempt, 4)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    parents = {parent for _, parent, _ in rows}
    assert len(parents) == 1
    libraries = {Path(part.path).parts for part in psutil.Process(parents.pop()).memory_maps()}
    assert {"pandas", "pyarrow"} <= {part for parts in libraries for part in parts}
    drawn_by = {drawn: worker for worker, _, drawn in rows}
    assert len(set(drawn_by.values())) >= 2, "two tasks run at once"
    drawings = {(worker, drawn) for worker, _, drawn in rows}
    assert len(drawings) == len(drawn_by), "no number was drawn by two workers"
