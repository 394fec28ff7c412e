"""`minflinkd token` on a file of tokens (E41)."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minflinkd.cli.exits import ExitCode
from minflinkd.cli.main import main


def token(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["token", *arguments, "--file", str(file)])


def test_a_token_is_shown_once_and_its_file_has_a_hash_of_it(tmp_path: Path) -> None:
    """E41."""
    file = tmp_path / "tokens.json"
    made = token(file, "create", "ci", "--role", "submit", "--jobs", "etl-*", "--json")
    assert made.exit_code == 0, made.output
    prefix, number, secret = json.loads(made.stdout)["token"].split("-", 2)
    assert (prefix, len(secret) > 20) == ("mfl", True)
    assert number in file.read_text()
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "ci" in token(file, "list").stdout
    assert token(file, "create", "ci", "--role", "view").exit_code == ExitCode.REFUSED
    assert token(file, "revoke", "ci").exit_code == 0
    assert token(file, "revoke", "ci").exit_code == ExitCode.NOT_FOUND


@pytest.mark.parametrize("name", ["bad name", "", "daemon", "../x"])
def test_a_name_that_is_not_allowed_is_refused_and_the_file_is_not_blamed(tmp_path: Path, name: str) -> None:
    """E41."""
    refused = token(tmp_path / "tokens.json", "create", name, "--role", "view")
    assert refused.exit_code == ExitCode.REFUSED
    assert "a name that is not allowed" in refused.stderr
    assert "tokens.json" not in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_a_daemons_directory_the_options_that_name_it_are_told(tmp_path: Path) -> None:
    """E10."""
    refused = token(tmp_path / "nowhere" / "tokens.json", "create", "ci", "--role", "view")
    assert refused.exit_code == ExitCode.REFUSED
    assert "--state-dir" in refused.stderr
    assert str(tmp_path / "nowhere") in refused.stderr.replace("\n", "")


def test_an_entry_for_a_certificate_has_no_token(tmp_path: Path) -> None:
    """It has a name, a role and all else as a token has, and is listed and revoked in the same way (E42)."""
    file = tmp_path / "tokens.json"
    made = token(file, "create", "ci", "--role", "submit", "--jobs", "etl-*", "--certificate", "ci", "--json")
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout) == {
        "name": "ci",
        "role": "submit",
        "jobs": ["etl-*"],
        "expires": None,
        "certificate": "CN:ci",
    }
    said = token(file, "create", "host", "--role", "view", "--certificate", "DNS:a.example").stdout
    assert "Who shows the certificate DNS:a.example is host." in said
    assert "mfl-" not in said
    assert "hash" not in file.read_text()
    found = {each["name"]: each["certificate"] for each in json.loads(token(file, "list", "--json").stdout)}
    assert found == {"ci": "CN:ci", "host": "DNS:a.example"}
    assert "CN:ci" in token(file, "list").stdout
    assert token(file, "revoke", "ci").exit_code == 0
    assert "CN:ci" not in file.read_text()


@pytest.mark.parametrize(
    ("name", "certificate", "problem"),
    [
        ("other", "CN:ci", "The certificate CN:ci is that of another entry already"),
        ("ci", "CN:other", "There is a token 'ci' already"),
        ("other", "CN:", "that is not one of CN:NAME"),
        ("other", "", "that is not one of CN:NAME"),
    ],
)
def test_a_certificate_is_that_of_one_entry(tmp_path: Path, name: str, certificate: str, problem: str) -> None:
    """Otherwise it would not be certain who shows it (E42)."""
    file = tmp_path / "tokens.json"
    token(file, "create", "ci", "--role", "view", "--certificate", "CN:ci")
    before = file.read_text()
    refused = token(file, "create", name, "--role", "admin", "--certificate", certificate)
    assert refused.exit_code == ExitCode.REFUSED
    assert problem in refused.stderr
    assert file.read_text() == before
