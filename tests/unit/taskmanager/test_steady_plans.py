"""Which rules of Spark's optimizer are switched off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import structlog

from minflinkd.taskmanager.session.spark.steady_plans import SETTINGS, allow_reuse, excluded, hold

RULES = SETTINGS["spark.sql.optimizer.excludedRules"].split(",")


def test_rules_that_others_exclude_stay_excluded() -> None:
    """A job may exclude rules of its own. No rule is listed twice."""
    assert excluded("") == ",".join(RULES)
    assert excluded("mine.Rule") == ",".join(["mine.Rule", *RULES])
    assert excluded(f" {RULES[0]} , mine.Rule") == ",".join([RULES[0], "mine.Rule", *RULES[1:]])


class Conf(dict[str, str]):
    """The settings of a session."""

    def set(self, name: str, value: str) -> None:
        self[name] = value


def test_what_user_code_has_changed_is_set_back_with_a_note_for_each_setting() -> None:
    """Nothing is logged if nothing was changed: the check runs in each micro-batch of a Python sink."""
    reuse, rules = SETTINGS
    conf = Conf({reuse: "true", rules: "mine.Rule"})
    spark: Any = SimpleNamespace(conf=conf)
    with structlog.testing.capture_logs() as told:
        hold(spark, stateful=True)
    assert conf == {reuse: "false", rules: ",".join(["mine.Rule", *RULES])}
    assert [(note["setting"], note["was"]) for note in told] == [(reuse, "true"), (rules, "mine.Rule")]
    with structlog.testing.capture_logs() as again:
        hold(spark, stateful=True)
    assert again == []


def test_a_query_without_state_reuses_exchanges() -> None:
    """It has no state to lose, and would read a table twice that it joins twice."""
    reuse, rules = SETTINGS
    conf = Conf(SETTINGS)
    spark: Any = SimpleNamespace(conf=conf)
    allow_reuse(spark)
    hold(spark, stateful=False)
    assert conf == {reuse: "true", rules: SETTINGS[rules]}
