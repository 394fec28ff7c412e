"""The modules of the page that decide, in a browser: what needs attention, how figures are written, what series do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.component.page.opened import Opened

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOW = 1_800_000_000_000


def job(state: str = "RUNNING", **extras: Any) -> dict[str, Any]:
    checkpoints = {"completed": NOW, "duration": 900, "interval": 5000, "consecutive-failures": 0}
    return {
        "jid": "a" * 32,
        "name": "orders",
        "state": state,
        "start-time": NOW - 60_000,
        "end-time": -1,
        "last-modification": NOW - 30_000,
        "minflinkd": {"checkpoints": checkpoints} | extras,
    }


def manager(**extras: Any) -> dict[str, Any]:
    own = {"session-error": "", "session-slow": "", "draining": False, "held-by": {}} | extras
    return {"id": "tm-1", "timeSinceLastHeartbeat": NOW - own.pop("silent", 0), "minflinkd": own}


REPEATED = {"failures": 7, "since": NOW - 9, "message": "no\nmore", "task-name": "out"}
DASH = "\N{EN DASH}"
CASES: dict[str, tuple[list[Any], list[Any], list[list[str]]]] = {
    "a job that is well": ([job()], [], []),
    "a job that waits": (
        [job("CREATED", waiting="2 slots are needed, 1 is free")],
        [],
        [["warning", "orders waits for slots", "2 slots are needed, 1 is free"]],
    ),
    "a job that fails again and again": (
        [
            job(
                "RESTARTING",
                **{
                    "restarting-repeatedly": {
                        "failures": 7,
                        "since": NOW - 9,
                        "message": "no\nmore",
                        "task-name": "out",
                    }
                },
            )
        ],
        [],
        [["problem", "orders restarts again and again: 7 failures in a row in out", "no"]],
    ),
    "a job that starts again": (
        [job("RESTARTING", **{"next-restart": NOW + 4500, "last-failure": {"message": "lost", "task": "in"}})],
        [],
        [["warning", "orders is restarting; it starts again in 5.0 s", "in: lost"]],
    ),
    "checkpoints that fail": (
        [job(checkpoints={"consecutive-failures": 3, "failure-message": "no room", "failed": NOW - 1})],
        [],
        [["problem", "The last 3 checkpoints of orders have failed", "no room"]],
    ),
    "checkpoints that take too long": (
        [job(checkpoints={"consecutive-failures": 0, "duration": 6000, "interval": 5000, "completed": NOW})],
        [],
        [
            [
                "warning",
                "Checkpoints of orders take longer than their interval",
                "The last one took 6.0 s, and they are to begin every 5.0 s.",
            ]
        ],
    ),
    "a JVM that often stands still, and one that does not": (
        [],
        [
            manager(metrics={"jvm.gc_share": 0.23, "jvm.heap.used_bytes": 9.6e8, "jvm.heap.max_bytes": 1e9}),
            manager(metrics={"jvm.gc_share": 0.09}),
        ],
        [
            [
                "warning",
                "TaskManager tm-1 spends 23 % of the time collecting garbage",
                "96 % of its heap is in use. Meanwhile all of its tasks stand still.",
            ]
        ],
    ),
    "a silent TaskManager, before what is less urgent": (
        [],
        [manager(draining=True), manager(silent=20_000)],
        [
            [
                "problem",
                "TaskManager tm-1 has not been heard for 20 s",
                "If it stays silent, it is given up and its tasks start elsewhere.",
            ],
            ["info", "TaskManager tm-1 is being drained", "Its jobs move to others."],
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_needs_attention_is_said_in_a_sentence(modules: Opened, case: str) -> None:
    """Worst first, each with why."""
    jobs, managers, wanted = CASES[case]
    known = json.dumps({"overview": None, "jobs": jobs, "managers": managers, "figures": None})
    found = await modules.ask(
        "app/attention.js", f"m.attention({known}, {NOW}).map((one) => [one.level, one.what, one.why])"
    )
    assert found == wanted


@pytest.mark.parametrize(("overview", "silent"), [({"silent-after": 3000}, 3000), ({}, 15_000)])
async def test_a_taskmanager_is_called_silent_before_it_counts_as_lost(
    modules: Opened, overview: dict[str, int], silent: int
) -> None:
    """After more than half of the heartbeat timeout, if the daemon says how long that is."""
    cluster = {"minflinkd": {"starting": []} | overview}
    found = []
    for since in (silent, silent + 1):
        known = json.dumps({"overview": cluster, "jobs": [], "managers": [manager(silent=since)], "figures": None})
        found.append(await modules.ask("app/attention.js", f"m.attention({known}, {NOW}).map((one) => one.key)"))
    assert found == [[], ["silent tm-1"]]


async def test_figures_are_short_and_what_is_unknown_is_no_zero(modules: Opened) -> None:
    written = {
        "m.seconds(0.0042)": "4.2 ms",
        "m.seconds(0.25)": "250 ms",
        "m.seconds(3.44)": "3.4 s",
        "m.seconds(59.99)": "1 min",
        "m.seconds(320)": "5 min 20 s",
        "m.seconds(7800)": "2 h 10 min",
        "m.seconds(86400 * 3 + 3600 * 4)": "3 d 4 h",
        "m.seconds(86400 * 1108)": "1108 d",
        "m.seconds(-1)": DASH,
        "m.bytes(0)": "0 B",
        "m.bytes(1536)": "1.50 KiB",
        "m.bytes(null)": DASH,
        "m.rate(12345)": "12.3 k/s",
        "m.rate(undefined)": DASH,
        "m.rate(0)": "0/s",
        "m.short(1234567)": "1.23 M",
        "m.share(0.256)": "26 %",
        "m.plural(1, 'task')": "1 task",
        "m.plural(1200, 'task')": "1,200 tasks",
    }
    found = await modules.ask("app/format.js", f"[{', '.join(written)}]")
    assert dict(zip(written, found, strict=True)) == written


async def test_samples_go_on_where_the_past_ends(modules: Opened) -> None:
    """What is missing between them is unknown, and only so many values are kept."""
    made = "const s = m.SeriesSet.of({start: 0, step: 5000, series: {a: [1, 2]}}, 5)"
    steps = "s.append(5000, {a: 3}); s.append(15000, {a: 4, b: 9}); s.append(30000, {a: 5})"
    found = await modules.ask(
        "app/series.js", f"(() => {{ {made}; {steps}; return [s.start, s.get('a'), s.get('b')]; }})()"
    )
    assert found == [10_000, [None, 4, None, None, 5], [None, 9, None, None, None]]


async def test_a_long_silence_begins_a_new_past(modules: Opened) -> None:
    made = "const s = m.SeriesSet.of({start: 0, step: 5000, series: {a: [1, 2]}}, 5)"
    found = await modules.ask(
        "app/series.js", f"(() => {{ {made}; s.append(9e9, {{a: 3}}); return [s.start, s.length, s.get('a')]; }})()"
    )
    assert found == [9_000_000_000, 1, [3]]


async def test_phases_that_are_told_from_the_beginning_become_parts(modules: Opened) -> None:
    found = await modules.ask("views/timeline.js", "m.parts({running: 3, stopped: 1, first_batch: 3.5})")
    assert found == [["stopped", 1], ["running", 2], ["first batch", 0.5]]
