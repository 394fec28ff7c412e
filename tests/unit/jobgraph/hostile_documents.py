"""Documents that are made to cost much more to check than to send, by name. Each is a value, not yet JSON (E45)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minflinkd.jobgraph.validation import MOST_VALUES, MOST_VERTICES

SINK = {"format": "noop"}
RATE = {"source": {"format": "rate"}}


def _job(vertices: Any, **more: Any) -> dict[str, Any]:
    return {"name": "hostile", "vertices": vertices, **more}


def _unknown_inputs() -> Any:
    """Quadratic, if each unknown name is compared with each known one."""
    return _job({f"v{i:04}": {"inputs": [f"w{i:04}x"], "sql": "SELECT 1"} for i in range(MOST_VERTICES - 200)})


def _wide() -> Any:
    readers = {f"s{i:04}": {"inputs": ["numbers"], "sink": SINK} for i in range(MOST_VERTICES - 1)}
    return _job({"numbers": RATE, **readers})


def _chain_with_branches() -> Any:
    """Each vertex has an end of its own, so each must become a task of its own."""
    vertices: dict[str, Any] = {"v0": RATE}
    for i in range(1, MOST_VERTICES // 2):
        vertices[f"v{i}"] = {"inputs": [f"v{i - 1}"], "sql": f"SELECT * FROM v{i - 1}"}
        vertices[f"s{i}"] = {"inputs": [f"v{i}"], "sink": SINK}
    return _job(vertices)


def _dense() -> Any:
    """Every vertex reads many others."""
    vertices: dict[str, Any] = {"v0": RATE}
    for i in range(1, 400):
        inputs = [f"v{j}" for j in range(max(0, i - 200), i)]
        vertices[f"v{i}"] = {"inputs": inputs, "sql": " UNION ALL ".join(f"SELECT * FROM {v}" for v in inputs)}
    return _job({**vertices, "out": {"inputs": ["v399"], "sink": SINK}})


def _cycles() -> Any:
    pairs = {f"v{i}": {"inputs": [f"v{i ^ 1}"], "sql": "SELECT 1"} for i in range(MOST_VERTICES)}
    return _job(pairs)


def _nested() -> Any:
    value: Any = 1
    for _ in range(900):
        value = [value]
    return _job({}, params={"deep": value})


HOSTILE: dict[str, Callable[[], Any]] = {
    "unknown inputs": _unknown_inputs,
    "a vertex with a thousand readers": _wide,
    "a chain with branches": _chain_with_branches,
    "vertices that read many others": _dense,
    "cycles": _cycles,
    "nested": _nested,
    "too many vertices": lambda: _job({f"v{i}": {} for i in range(MOST_VERTICES + 1)}),
    "too many values": lambda: _job({}, params={"list": [0] * MOST_VALUES}),
    "unknown keys": lambda: _job({}, **{f"paralelism{i}": 1 for i in range(MOST_VALUES // 2)}),
    "unknown options": lambda: _job(
        {
            "a": {"source": {"format": "csv", "path": "/a", "options": {f"headr{i}": "1" for i in range(40_000)}}},
            "b": {"inputs": ["a"], "sink": SINK},
        }
    ),
    "params without a value": lambda: _job(
        {"a": RATE, "b": {"inputs": ["a"], "sql": " ".join(f"${{minut{i}}}" for i in range(40_000))}},
        params={f"minutes{i}": 1 for i in range(1000)},
    ),
    "offsets of unknown sources": lambda: _job(
        {f"v{i}": RATE for i in range(MOST_VERTICES)}, restore={"offsets": {f"w{i}": 1 for i in range(40_000)}}
    ),
    "a list of wrong values": lambda: _job({}, artifacts=[{"path": 5}] * 30_000),
    "a long text": lambda: _job({"a": RATE, "b": {"inputs": ["a"], "sql": "SELECT '" + "x" * 3_000_000 + "'"}}),
}
