"""A wrong job is refused with all its faults at the same time. Nothing is started, and nothing is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster, write_job
from tests.e2e.command import minflinkd
from tests.files import files_below

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

WRONG: dict[str, Any] = {
    "name": "wrong",
    "checkpoinitng": {"interval": "1 s"},
    "artifacts": ["missing.py"],
    "vertices": {
        "events": {"source": {"format": "rate", "options": {"rowsPerSecond": 1}}},
        "first": {"inputs": ["second"], "sql": "SELECT * FROM second"},
        "second": {"inputs": ["first"], "sql": "SELECT * FROM first"},
        "typo": {"inputs": ["event"], "sql": "SELECT value FROM event"},
        "bad_sql": {"inputs": ["events"], "sql": "SELECT no_such_column FROM events"},
        "out": {"inputs": ["bad_sql"], "sink": {"format": "parquet", "path": "/tmp/never-written"}},
        "lonely": {"sink": {"format": "parquet", "path": "/tmp/never-written-either"}},
    },
}


def stored(state: Path) -> set[str]:
    """Return the files of jobs, blobs and checkpoints, wherever the daemon keeps them.

    The history of its measurements (`ha/<cluster>/history`) grows by itself, whatever is refused.
    """
    kept = ("jobs", "blobs", "ha", "checkpoints")
    found = [p.relative_to(state) for name in kept for p in files_below(state / name)]
    return {str(p) for p in found if p.parts[2:3] != ("history",)}


async def left_behind(cluster: Cluster, before: set[str]) -> set[str]:
    """Return the files that have come since, but for those of known jobs: those of other tests may just end."""
    known = {job.jid for job in (await cluster.client.jobs()).jobs}
    return {path for path in stored(cluster.state) - before if not any(job in path for job in known)}


async def test_every_fault_of_a_wrong_job_is_named_at_once(cluster: Cluster, tmp_path: Path) -> None:
    """Cycle, unknown input, misspelt option, wrong SQL, missing artifact, sink without input (J4)."""
    await cluster.await_ready(1)
    before = stored(cluster.state)
    file = write_job(tmp_path / "wrong.yaml", WRONG)
    code, _, err = await minflinkd(cluster, "run", str(file))
    assert code == 2
    for wanted in (
        "unknown key",  # checkpoinitng
        "checkpointing?",
        "missing.py",
        "cycle: first -> second -> first",
        "unknown input event",
        "did you mean events?",
        "vertices.lonely",
        "no_such_column",  # by Spark, in the part of the job without other faults
    ):
        assert wanted in err, f"{wanted!r} is not named:\n{err}"
    assert "Traceback" not in err
    assert await left_behind(cluster, before) == set()
    assert not (await cluster.client.jobs()).jobs or all(j.name != "wrong" for j in (await cluster.client.jobs()).jobs)
    assert not Path("/tmp/never-written").exists()


async def test_sql_that_spark_cannot_analyse_is_a_fault_of_the_submission(cluster: Cluster, tmp_path: Path) -> None:
    """The fault has Spark's words and the place in the job file. The artifact is not left behind (J4)."""
    (tmp_path / "clean.py").write_text("def clean(inputs, params):\n    return inputs['events']\n")
    vertices = {
        "events": {"source": {"format": "rate"}},
        "cleaned": {"inputs": ["events"], "python": "clean:clean"},
        "bad": {"inputs": ["cleaned"], "sql": "SELECT vlaue FROM cleaned"},
        "out": {"inputs": ["bad"], "sink": {"format": "parquet", "path": str(tmp_path / "out")}},
    }
    before = stored(cluster.state)
    file = write_job(tmp_path / "job.yaml", {"name": "bad-sql", "artifacts": ["clean.py"], "vertices": vertices})
    code, _, err = await minflinkd(cluster, "run", str(file), "--json")
    assert code == 2
    answer = json.loads(err)
    faults = answer["faults"]
    assert [fault["path"] for fault in faults] == ["vertices.bad.sql"]
    assert "vlaue" in faults[0]["problem"]
    assert await left_behind(cluster, before) == set()


async def test_a_dry_run_starts_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """Spark checks the job, and nothing else happens (J4)."""
    vertices = {
        "events": {"source": {"format": "rate"}},
        "out": {"inputs": ["events"], "sink": {"format": "parquet", "path": str(tmp_path / "out")}},
    }
    file = write_job(tmp_path / "job.yaml", {"name": "dry", "vertices": vertices})
    before = stored(cluster.state)
    code, out, _ = await minflinkd(cluster, "run", str(file), "--dry-run")
    assert (code, out.strip()) == (0, "The job has no faults. Nothing was started.")
    assert await left_behind(cluster, before) == set()
    assert all(job.name != "dry" for job in (await cluster.client.jobs()).jobs)


async def test_an_unknown_sink_format_is_the_only_fault_of_a_job_that_is_right_otherwise(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Spark analyses the job without the faulty sink, but the missing sink is not reported as a fault (J4)."""
    vertices = {
        "events": {"source": {"format": "rate"}},
        "counted": {"inputs": ["events"], "sql": "SELECT value % 2 AS k, count(*) AS n FROM events GROUP BY 1"},
        "out": {"inputs": ["counted"], "sink": {"format": "hudi", "path": str(tmp_path / "out")}},
    }
    await cluster.await_ready(1)
    file = write_job(tmp_path / "job.yaml", {"name": "hudi", "vertices": vertices})
    code, _, err = await minflinkd(cluster, "run", str(file), "--dry-run", "--json")
    assert code == 2
    assert [fault["path"] for fault in json.loads(err)["faults"]] == ["vertices.out.sink.format"]


async def test_faults_that_only_the_first_micro_batch_would_show_are_found_by_a_dry_run(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A second watermark, SQL over a vertex that is not an input, and a directory that cannot be made (J4)."""
    (tmp_path / "file").write_text("")
    watermark = {"column": "timestamp", "delay": "5 seconds"}
    vertices = {
        "events": {"source": {"format": "rate"}, "watermark": watermark},
        "later": {"inputs": ["events"], "sql": "SELECT * FROM events", "watermark": watermark},
        "out": {"inputs": ["later"], "sink": {"format": "parquet", "path": str(tmp_path / "out")}},
        "others": {"source": {"format": "rate"}},
        "wrong": {"inputs": ["others"], "sql": "SELECT * FROM events"},
        "nowhere": {"inputs": ["wrong"], "sink": {"format": "parquet", "path": str(tmp_path / "file" / "out")}},
    }
    file = write_job(tmp_path / "job.yaml", {"name": "dry", "vertices": vertices})
    code, _, err = await minflinkd(cluster, "run", str(file), "--dry-run")
    assert code == 2
    for path in ("vertices.later.watermark", "vertices.wrong.sql", "vertices.nowhere.sink.path"):
        assert path in err, err
    assert "if it is a vertex, add it: inputs: [others, events]" in err
    for noise in ("Traceback", "at org.apache", "Py4J", "+- "):
        assert noise not in err
