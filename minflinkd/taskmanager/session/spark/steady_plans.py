"""Settings that keep the physical plan of a query the same in every micro-batch.

Spark plans each micro-batch anew, and may plan one without rows differently. But it finds state by the position of the
operator in the physical plan, and derives the watermarks of a micro-batch from the plan of the one before. So
everything that makes a plan depend on the rows is off for a query with state:

- Reuse of exchanges. Example: two vertices read one aggregate. Spark does not look for watermarks inside a reused
  exchange, so the second copy of the aggregate gets none, and never fires. With file sources this happens after each
  micro-batch without rows, with Kafka after each micro-batch.
- Optimizer rules that move a join past an aggregate, a union or another join. Example: an aggregate is semi-joined with
  its own source. With rows, the join was moved below the aggregate; without rows, it was not. Each operator then looked
  for the other one's state, and the query failed.
"""

from __future__ import annotations

import structlog
from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

_REUSE = "spark.sql.exchange.reuse"
_EXCLUDED = "spark.sql.optimizer.excludedRules"
_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer"
_MOVING_JOINS = ("PushDownLeftSemiAntiJoin", "PushLeftSemiLeftAntiThroughJoin", "PushDownJoinThroughUnion")
_RULES = tuple(f"{_OPTIMIZER}.{rule}" for rule in _MOVING_JOINS)

_SET_BACK = "a Spark setting was set back"

SETTINGS = {_REUSE: "false", _EXCLUDED: ",".join(_RULES)}


def allow_reuse(spark: SparkSession) -> None:
    """Let a query without state reuse exchanges.

    It has no state to lose. If it joins a large table twice, each micro-batch would read and sort that table twice.
    """
    spark.conf.set(_REUSE, "true")


def hold(spark: SparkSession, *, stateful: bool) -> None:
    """Set these settings back if the administrator, the job, or the code of a vertex or sink has changed them.

    Reuse of exchanges is left alone if the query keeps no state.

    A query's session is a copy of its task's session, and lives as long as the query: what a sink sets in it during one
    micro-batch would hold in all later ones.
    """
    reuse, rules = spark.conf.get(_REUSE) or "", spark.conf.get(_EXCLUDED) or ""
    if stateful and reuse.lower() != "false":
        spark.conf.set(_REUSE, "false")
        log.warning(_SET_BACK, setting=_REUSE, was=reuse, hint="queries depend on it: leave it as it is")
    if (wanted := excluded(rules)) != rules:
        spark.conf.set(_EXCLUDED, wanted)
        log.warning(_SET_BACK, setting=_EXCLUDED, was=rules, hint="the rules of minflinkd are added to yours")


def excluded(already: str) -> str:
    """Return the rules that are excluded already and ours, separated by commas. Pure."""
    rules = [rule.strip() for rule in already.split(",") if rule.strip()]
    return ",".join([*rules, *(rule for rule in _RULES if rule not in rules)])
