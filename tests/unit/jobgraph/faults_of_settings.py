"""Faults that a job file may have outside its vertices. For `test_single_faults.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Document = dict[str, Any]

# Faults by name: the change to a good document, the path of the fault, and a part of its text.
FAULTS_OF_SETTINGS: dict[str, tuple[Callable[[Document], object], str, str]] = {
    "an unknown key has the nearest known one": (
        lambda d: d.update(paralelism=3),
        "paralelism",
        "did you mean parallelism?",
    ),
    "a key with underscores is one with dashes": (
        lambda d: d.update(max_parallelism=3),
        "max_parallelism",
        "did you mean max-parallelism?",
    ),
    "an empty name": (lambda d: d.update(name=" "), "name", "the name is empty"),
    "a wrong type": (lambda d: d.update(parallelism="two"), "parallelism", '"two" is not a whole number, at least 1'),
    "parallelism of nothing": (lambda d: d.update(parallelism=0), "parallelism", "at least 1"),
    "parallelism above the maximum": (
        lambda d: d.update({"max-parallelism": 1}),
        "parallelism",
        "2 is more than max-parallelism, 1",
    ),
    "an autoscaler without a limit": (
        lambda d: d.update(autoscaler={"min": 2}),
        "autoscaler.max",
        "nobody says how many slots it may get",
    ),
    "an autoscaler above the maximum": (
        lambda d: d.update({"autoscaler": {"max": 9}, "max-parallelism": 8}),
        "autoscaler.max",
        "9 is more than max-parallelism, 8",
    ),
    "an autoscaler with more at least than at most": (
        lambda d: d.update(autoscaler={"min": 5, "max": 4}),
        "autoscaler.min",
        "min is 5, and it may get 4 slots at most",
    ),
    "an autoscaler below the least that a job starts with": (
        lambda d: d.update({"parallelism": 4, "min-parallelism": 3, "autoscaler": {"max": 2}}),
        "autoscaler.min",
        "min-parallelism of the job is 3",
    ),
    "an autoscaler that aims at all of its slots": (
        lambda d: d.update(autoscaler={"max": 4, "target-utilization": 1.0}),
        "autoscaler.target-utilization",
        "0.1 to 0.95",
    ),
    "an autoscaler with a cool-down of a second": (
        lambda d: d.update(autoscaler={"max": 4, "cool-down": "1 s"}),
        "autoscaler.cool-down",
        "too short to see what a change has done",
    ),
    "an autoscaler that has no time to see": (
        lambda d: d.update(autoscaler={"max": 4, "scale-down-delay": 0}),
        "autoscaler.scale-down-delay",
        "10 s, or more",
    ),
    "an autoscaler that catches up at once": (
        lambda d: d.update(autoscaler={"max": 4, "catch-up": 0}),
        "autoscaler.catch-up",
        "10 s, or more",
    ),
    "an autoscaler of a batch job": (
        lambda d: d.update({"mode": "batch", "autoscaler": {"max": 4}}),
        "autoscaler",
        "no rate at which rows come in",
    ),
    "a hot standby in sessions of its own": (
        lambda d: d.update({"recovery": "hot-standby", "isolation": "job"}),
        "recovery",
        "the job's code runs on none",
    ),
    "a wrong unit": (
        lambda d: d["checkpointing"].update(interval="5 parsecs"),
        "checkpointing.interval",
        "a duration such as",
    ),
    "a wrong choice": (
        lambda d: d.update(mode="batsch"),
        "mode",
        "did you mean batch?",
    ),
    "no checkpoints for an exactly-once sink": (
        lambda d: d["checkpointing"].update(interval=0),
        "checkpointing.interval",
        "0 turns checkpoints off",
    ),
    "a setting of the whole JVM": (
        lambda d: d.update(spark={"spark.sql.streaming.stateStore.maintenanceInterval": "1s"}),
        'spark["spark.sql.streaming.stateStore.maintenanceInterval"]',
        "acts on the whole JVM",
    ),
    "a setting of the driver": (
        lambda d: d.update(spark={"spark.driver.memory": "1g"}),
        'spark["spark.driver.memory"]',
        "acts on the whole JVM",
    ),
    "a setting that minflinkd owns": (
        lambda d: d.update(spark={"spark.sql.shuffle.partitions": 4}),
        'spark["spark.sql.shuffle.partitions"]',
        "set `parallelism`",
    ),
    "a setting with which rows are lost": (
        lambda d: d.update(spark={"spark.sql.exchange.reuse": "true"}),
        'spark["spark.sql.exchange.reuse"]',
        "would lose rows",
    ),
    "an artifact that cannot be loaded": (
        lambda d: d.update(artifacts=["native.so"]),
        "artifacts[0]",
        "cannot be loaded",
    ),
    "an artifact with the name of a standard module": (
        lambda d: d.update(artifacts=["queue.py"]),
        "artifacts[0]",
        '"queue.py" has the name of a module that is never replaced',
    ),
    "an artifact with the name of pyspark": (
        lambda d: d.update(artifacts=[{"name": "pyspark.py", "path": "x.py"}]),
        "artifacts[0]",
        '"pyspark.py" has the name of a module that is never replaced',
    ),
    "an artifact with a path for a name": (
        lambda d: d.update(artifacts=[{"name": "../x.py", "path": "x.py"}]),
        "artifacts[0]",
        "is not a file name",
    ),
    "two artifacts of one name": (
        lambda d: d.update(artifacts=["a/x.py", "b/x.py"]),
        "artifacts[1]",
        "the name of two artifacts",
    ),
    "no vertices": (lambda d: d.update(vertices={}), "vertices", "the job has no vertices"),
    "fewer slots than the job needs at least": (
        lambda d: d.update({"min-parallelism": 3}),
        "min-parallelism",
        "3 is more than parallelism, 2",
    ),
    "a param with a name that no text can hold": (
        lambda d: d["params"].update({"1st": 1}),
        'params["1st"]',
        "a letter",
    ),
    "no time for a checkpoint": (lambda d: d["checkpointing"].update(timeout=0), "checkpointing.timeout", "within 0 s"),
    "no checkpoints where they are exactly-once": (
        lambda d: (d["vertices"]["out"].update(sink={"format": "console"}), d["checkpointing"].update(interval=0)),
        "checkpointing.interval",
        "0 turns checkpoints off",
    ),
    "no checkpoints for files that wait for one": (
        lambda d: (
            d["vertices"]["out"]["sink"].pop("delivery"),
            d["checkpointing"].update(interval=0, mode="at-least-once"),
        ),
        "checkpointing.interval",
        "0 turns checkpoints off",
    ),
    "an artifact without a name": (
        lambda d: d.update(artifacts=[{"name": "", "path": "x.py"}]),
        "artifacts[0]",
        '"" is not a file name',
    ),
    "an artifact with the directory itself for a name": (
        lambda d: d.update(artifacts=[{"name": ".", "path": "x.py"}]),
        "artifacts[0]",
        '"." is not a file name',
    ),
    "an artifact with the directory above for a name": (
        lambda d: d.update(artifacts=[{"name": "..", "path": "x.py"}]),
        "artifacts[0]",
        '".." is not a file name',
    ),
    "an artifact with a name that no file can have": (
        lambda d: d.update(artifacts=[{"name": "x\0.py", "path": "x.py"}]),
        "artifacts[0]",
        "is not a file name",
    ),
    "an artifact that is nowhere": (
        lambda d: d.update(artifacts=[{"name": "x.py"}]),
        "artifacts[0]",
        "neither a path nor a key",
    ),
    "an artifact smaller than nothing": (
        lambda d: d.update(artifacts=[{"name": "x.py", "path": "x.py", "size": -1}]),
        "artifacts[0].size",
        "-1 bytes",
    ),
    "a start from nowhere": (lambda d: d.update(restore={}), "restore.path", "path is missing"),
    "a start from a relative path": (lambda d: d.update(restore={"path": "x"}), "restore.path", "is not absolute"),
    "a start at offsets that are no mapping": (
        lambda d: d.update(restore={"path": "/s", "offsets": "last"}),
        "restore.offsets",
        '"last" is not latest',
    ),
    "a start at the offsets of a source that is not there": (
        lambda d: d.update(restore={"offsets": {"fligths": 1}}),
        "restore.offsets.fligths",
        "did you mean flights?",
    ),
    "a start at offsets that are given, from a path": (
        lambda d: d.update(restore={"path": "/s", "offsets": {"flights#1": 1}}),
        "restore.path",
        "the offsets are given",
    ),
    "a start at offsets that claims a snapshot": (
        lambda d: d.update(restore={"path": "/s", "offsets": "latest", "mode": "claim"}),
        "restore.mode",
        "claims nothing",
    ),
}
