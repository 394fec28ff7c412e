"""Which rules of Spark's optimizer are off."""

from __future__ import annotations

from minflinkd.taskmanager.session.steady_plans import SETTINGS, excluded

RULES = SETTINGS["spark.sql.optimizer.excludedRules"].split(",")


def test_rules_that_others_exclude_stay_excluded() -> None:
    """A job may exclude rules of its own; none comes twice."""
    assert excluded("") == ",".join(RULES)
    assert excluded("mine.Rule") == ",".join(["mine.Rule", *RULES])
    assert excluded(f" {RULES[0]} , mine.Rule") == ",".join([RULES[0], "mine.Rule", *RULES[1:]])
