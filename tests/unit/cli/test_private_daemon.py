"""The options of the daemon that `minflinkd check` starts for itself."""

from __future__ import annotations

from pathlib import Path

from minflinkd.cli.private_daemon import private_config
from tests.unit.config.test_tls_options import INTERNAL, REST


def test_it_uses_no_tls_whatever_the_configuration_says(tmp_path: Path) -> None:
    """Nobody else reaches it, and the certificates need not be readable for whoever checks a job (E42)."""
    config = private_config(None, {}, INTERNAL | REST, home=tmp_path, start_timeout=1.0)
    assert not config.internal_tls.enabled
    assert not config.rest_tls.enabled
