"""How long a request to ZooKeeper may take, beside the lease of the leader that asks (A11)."""

from __future__ import annotations

from typing import Any

import pytest

from minflinkd.config import ConfigError, load_config
from minflinkd.config.ha_options import ANSWERS
from minflinkd.ha.zookeeper import cluster
from tests.unit.config.test_high_availability import POSSIBLE, RENEWAL, SESSION


@pytest.mark.parametrize("session", [0.4, 1.0, 1.18, 2.0, 3.5, 6.0, 60.0])
def test_a_server_that_hangs_leaves_time_to_ask_another_one(session: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with the longest renewal interval that is accepted: the second answer comes within the lease (A11).

    What is left for it, a seventh of the session timeout, is in docs/decisions/0017.
    """
    made: dict[str, Any] = {}
    monkeypatch.setattr(cluster, "ZooKeeperSession", lambda _, **options: made.update(options))
    renewal = 0.85 * session / ANSWERS - 0.001
    options = {SESSION: f"{session * 1000:.0f} ms", RENEWAL: f"{renewal * 1000:.0f} ms"}
    config = load_config(None, {}, POSSIBLE | options)
    cluster.ZooKeeperCluster(config.ha, overflow=None, fingerprint="")  # type: ignore[arg-type]
    assert made["session_timeout"] == session
    asked_again = renewal + made["request_timeout"] + renewal / 4  # after the answer before
    assert asked_again < config.ha.lease - session / 7


def test_a_longer_renewal_interval_is_refused() -> None:
    """The arithmetic above holds for every configuration with which a daemon starts (A11)."""
    with pytest.raises(ConfigError, match="3 questions"):
        load_config(None, {}, POSSIBLE | {SESSION: "1 s", RENEWAL: "290 ms"})
