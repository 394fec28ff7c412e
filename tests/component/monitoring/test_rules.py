"""The rules for Prometheus: right, tested by promtool, and about metrics that the daemon has (E19b)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.servers.prometheus import PROMTOOL, needs_prometheus

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "minflinkd.rules.yml"
TESTS = RULES.with_name("minflinkd.rules.test.yml")
DOCUMENTED = (DEPLOY.parent / "docs" / "http.md").read_text("utf-8")


def rules() -> list[dict[str, Any]]:
    loaded = YAML(typ="safe", pure=True).load(RULES.read_text())
    return [rule for group in loaded["groups"] for rule in group["rules"]]


def promtool(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROMTOOL, *args], cwd=RULES.parent, capture_output=True, text=True, timeout=120, check=False)


@needs_prometheus
def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", RULES.name)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_each_alert_fires_on_the_series_of_its_cause_and_not_when_nothing_is_wrong() -> None:
    done = promtool("test", "rules", TESTS.name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    fires: dict[str, set[bool]] = {rule["alert"]: set() for rule in rules()}
    for case in YAML(typ="safe", pure=True).load(TESTS.read_text())["tests"]:
        for check in case["alert_rule_test"]:
            fires[check["alertname"]].add(bool(check["exp_alerts"]))
    assert all(seen == {True, False} for seen in fires.values()), fires


def test_each_alert_is_fired_by_its_cause_in_a_real_run() -> None:
    """By one of the tests in tests/e2e/alerts, which only `make test-all` runs."""
    runs = "".join(path.read_text() for path in (DEPLOY.parent / "tests" / "e2e" / "alerts").glob("test_*.py"))
    fired = re.findall(r'fires\((?:\w+\.)?server, "(\w+)"', runs)
    assert sorted({rule["alert"] for rule in rules()} - set(fired)) == []


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_is_wrong_and_what_to_do_about_metrics_that_exist(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["runbook"].endswith(".")
    for name in re.findall(r"minflinkd_(\w+)", rule["expr"]):
        assert f"`{name.removesuffix('_bucket')}`" in DOCUMENTED, f"docs/http.md does not have {name}"


def test_each_alert_is_in_the_documentation() -> None:
    page = (DEPLOY.parent / "docs" / "monitoring.md").read_text("utf-8")
    assert [rule["alert"] for rule in rules() if f"`{rule['alert']}`" not in page] == []
