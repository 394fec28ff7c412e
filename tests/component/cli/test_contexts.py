"""Named clusters: `minflinkd context`, and which address and token a command takes (E10, E40)."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minflinkd.cli.main import main
from tests.component.cli.conftest import RunningDaemon
from tests.unit.rest.parties import RUNNING

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("MINFLINKD_URL", "MINFLINKD_CONTEXT", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env=environ)


def reaches(*arguments: str, **environ: str) -> bool:
    """Whether the command finds the daemon with the job."""
    shown = run("list", *arguments, **environ)
    assert shown.exit_code in (0, 3), shown.output
    return RUNNING in shown.output


def test_an_option_counts_before_the_environment_and_that_before_the_context_in_use(
    home: Path, daemon: RunningDaemon
) -> None:
    """The order that docs/cli.md has: --url, --context, $MINFLINKD_URL, $MINFLINKD_CONTEXT, the one in use."""
    for name, address in (("away", NOWHERE), ("here", daemon.url)):
        assert run("context", "add", name, "--address", address).exit_code == 0
    assert not reaches(), "the first one is in use"
    assert reaches(MINFLINKD_CONTEXT="here")
    assert not reaches(MINFLINKD_CONTEXT="here", MINFLINKD_URL=NOWHERE)
    assert reaches("--context", "here", MINFLINKD_URL=NOWHERE)
    assert reaches("--url", daemon.url, MINFLINKD_CONTEXT="away")
    assert run("context", "use", "here").exit_code == 0
    assert reaches()
    assert run("list", "--url", daemon.url, "--context", "here").exit_code == 2
    away = run("list", "--context", "away").stderr
    assert "The address is that of the context 'away'." in away


def test_contexts_are_for_their_user_alone_and_hold_no_token(home: Path) -> None:
    """The token stays in its file, which others may not read (E40)."""
    token = home / "prod.token"
    token.write_text("s3cret")
    token.chmod(0o600)
    added = run("context", "add", "prod", "--address", "a:8081,https://b:8081", "--token-file", str(token), "--json")
    assert json.loads(added.stdout)["address"] == "http://a:8081,https://b:8081"
    stored = home / ".config/minflinkd/contexts.json"
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert "s3cret" not in stored.read_text()
    assert str(token) in run("context", "list").stdout
    token.chmod(0o644)
    refused = run("context", "add", "other", "--address", "a:8081", "--token-file", str(token))
    assert refused.exit_code == 2
    assert f"chmod 600 {token}" in refused.stderr


def test_a_file_that_others_can_change_is_not_obeyed(home: Path) -> None:
    run("context", "add", "prod", "--address", NOWHERE)
    stored = home / ".config/minflinkd/contexts.json"
    stored.chmod(0o666)
    refused = run("list")
    assert (refused.exit_code, f"chmod 600 {stored}" in refused.stderr) == (2, True)
    stored.chmod(0o600)
    stored.write_text("[]")
    assert run("list").exit_code == 2


def test_contexts_are_replaced_removed_and_told_apart(home: Path) -> None:
    run("context", "add", "prod", "--address", NOWHERE)
    assert run("context", "add", "prod", "--address", NOWHERE).exit_code == 5
    assert run("context", "add", "prod", "--address", "http://c:1", "--replace").exit_code == 0
    assert "Did you mean 'prod'?" in run("context", "use", "prd").stderr
    assert run("context", "add", "a b", "--address", NOWHERE).exit_code == 2
    assert run("context", "add", "x", "--address", "http://u:p@h:1").exit_code == 2
    assert "No context is in use now." in run("context", "remove", "prod").stdout
    assert run("context", "remove", "prod").exit_code == 4
    assert "No contexts." in run("context", "list").stdout
    assert run("context", "use", "--none").exit_code == 0
