"""The alerts as a test can wait for them: a minute of theirs lasts a second. Nothing else about them is changed."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ruamel.yaml import YAML

from tests.component.monitoring.test_rules import RULES
from tests.servers.prometheus import Prometheus
from tests.waiting import until

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME = re.compile(r"(\d+)([smhd])")
_RANGE = re.compile(r"\[[^\]]*\]")
_OVERDUE = "600)"  # seconds, the one time in an expression that is no range and that a test cannot wait for


def hurried(target: Path) -> Path:
    """Write the rules with each `for`, and each range in an expression, a sixtieth as long."""
    yaml = YAML(typ="safe", pure=True)
    loaded = yaml.load(RULES.read_text())
    for group in loaded["groups"]:
        for rule in group["rules"]:
            rule["expr"] = _RANGE.sub(lambda found: _short(found[0]), rule["expr"]).replace(_OVERDUE, "10)")
            if "for" in rule:
                rule["for"] = _short(rule["for"])
    target.write_text(json.dumps(loaded))  # JSON is YAML
    return target


def _short(text: str) -> str:
    return _TIME.sub(lambda found: f"{int(found[1]) * _SECONDS[found[2]] // 60}s", text)


async def fires(server: Prometheus, name: str, *, timeout: float = 60.0, **labels: str) -> None:
    """Wait until the alert fires with these labels, among others."""

    async def does() -> bool:
        found = (await server.firing()).get(name, [])
        return any(labels.items() <= alert.items() for alert in found)

    try:
        await until(does, f"{name} fires", timeout=timeout, pause=0.5)
    except AssertionError as error:
        raise AssertionError(f"{error}; instead of it: {await server.firing()}") from error


async def nothing_fires(server: Prometheus, *, but: frozenset[str] = frozenset()) -> None:
    """Wait until no alert fires. One does before the first scrape: nobody has told yet that a daemon leads."""
    left: set[str] = set()

    async def none() -> bool:
        left.clear()
        left.update(set(await server.firing()) - but)
        return not left

    try:
        await until(none, "no alert fires", timeout=20, pause=0.5)
    except AssertionError as error:
        raise AssertionError(f"{error}: {left}") from error
