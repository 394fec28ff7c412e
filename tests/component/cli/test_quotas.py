"""`minflinkd quotas`."""

from __future__ import annotations

import json

from tests.component.cli.conftest import Command


def test_quotas_shows_figures_beside_limits(command: Command) -> None:
    """A figure without a limit stands alone."""
    shown = command("quotas")
    assert shown.exit_code == 0
    heading, *rows = (line.split() for line in shown.output.splitlines())
    assert heading == ["USER", "JOBS", "SLOTS", "ARTIFACTS"]
    assert rows == [
        ["alice", "1", "of", "1", "2", "of", "8", "1.5", "KiB", "of", "2.0", "GiB"],
        ["anonymous", "1", "2", "of", "8", "1.5", "KiB", "of", "2.0", "GiB"],
        ["bob", "1", "2", "of", "8", "1.5", "KiB", "of", "2.0", "GiB"],
    ]


def test_quotas_can_be_read_by_a_program(command: Command) -> None:
    found = json.loads(command("quotas", "--json").output)
    assert found["user"] == "anonymous"
    assert found["quotas"][0]["jobs"] == {"used": 1, "limit": 1}
