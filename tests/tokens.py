"""How a test's own HTTP client shows a daemon its token. `minflinkd.cli.client.Client` finds a way by itself."""

from __future__ import annotations

from pathlib import Path

from minflinkd.rest.identity.own_token import FILE


def bearer(state: Path) -> dict[str, str]:
    """Return the header for the daemon of this state directory."""
    return {"Authorization": f"Bearer {(state / FILE).read_text().strip()}"}
