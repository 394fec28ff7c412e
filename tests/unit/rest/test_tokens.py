"""Tokens and the file that says whose they are (E41)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minflinkd.rest.identity.own_token import FILE, own_token
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.identity.tokens import (
    Token,
    TokenRecord,
    UnusableTokens,
    hash_of,
    matches,
    new_hash,
    parse_tokens,
    read_tokens,
    write_tokens,
)

CHEAP = (1 << 4, 8, 1)  # for tests that are not about the cost
HASH = hash_of("x" * 43, b"s" * 16, CHEAP)


def record(**changes: Any) -> TokenRecord:
    return msgspec.structs.replace(TokenRecord(name="ci", id="0" * 16, role="submit", hash=HASH), **changes)


def test_a_token_reads_back_from_its_text_and_its_secret_is_not_shown() -> None:
    """What is logged or shown by mistake has no secret (E41)."""
    token = Token.new()
    assert Token.parsed(token.text) == token
    assert token.secret not in repr(token)


@pytest.mark.parametrize(
    "text", ["", "mfl-", "mfl-" + "0" * 16 + "-short", "MFL-" + "0" * 16 + "-" + "x" * 43, "é" * 60]
)
def test_what_is_no_token_is_none(text: str) -> None:
    assert Token.parsed(text) is None


def test_a_hash_matches_its_secret_alone_and_is_salted() -> None:
    """The file has salted scrypt hashes (E41)."""
    secret = Token.new().secret
    one, other = new_hash(secret), new_hash(secret)
    assert one != other
    assert one.startswith("scrypt:16384:8:1:")
    assert matches(secret, one)
    assert not matches(secret[:-1] + ("a" if secret[-1] != "a" else "b"), one)
    assert not matches(secret, "no hash")


def test_what_is_written_has_no_secret_and_reads_back(tmp_path: Path) -> None:
    """Whoever reads the file cannot log in (E41)."""
    file, token = tmp_path / "tokens.json", Token.new()
    written = (
        record(id=token.id, hash=hash_of(token.secret, b"s" * 16, CHEAP), jobs=("etl-*",)),
        record(name="old", id="1" * 16, role="view", expires=datetime(2026, 1, 1, tzinfo=UTC)),
    )
    write_tokens(file, written)
    assert read_tokens(file) == written
    assert token.secret not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_without_a_file_there_are_no_tokens(tmp_path: Path) -> None:
    assert read_tokens(tmp_path / "tokens.json") == ()


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """As the cluster's secret (E41)."""
    file = tmp_path / "tokens.json"
    write_tokens(file, (record(),))
    file.chmod(0o644)
    with pytest.raises(UnusableTokens, match="every user of this machine"):
        read_tokens(file)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "a b"}, "a name that is not allowed"),
        ({"name": "daemon"}, "a name that is not allowed"),
        ({"role": "root"}, "which is none of view, operate, submit, admin"),
        ({"role": "anybody"}, "which is none of"),
        ({"id": "0"}, "an id that is none"),
        ({"jobs": ("",)}, "an empty pattern"),
        ({"hash": "x"}, "a hash that is none"),
        ({"hash": HASH.replace("scrypt:16:8:1", "scrypt:524288:99:1")}, "costs too much"),
        ({"hash": HASH.replace("scrypt:16:8:1", "scrypt:17:8:1")}, "costs too much, or nothing"),
        ({"hash": HASH.replace("scrypt:16:8:1", "scrypt:16:0:1")}, "costs too much, or nothing"),
    ],
)
def test_a_wrong_entry_is_named_with_what_is_wrong(changes: dict[str, Any], problem: str) -> None:
    """Also an entry whose hash would take all memory (E41)."""
    wrong = msgspec.json.encode({"tokens": [record(**changes)]})
    with pytest.raises(UnusableTokens, match=problem):
        parse_tokens(wrong, "tokens.json")


@pytest.mark.parametrize("twice", [{"id": "1" * 16}, {"name": "other"}])
def test_two_entries_never_share_a_name_or_an_id(twice: dict[str, str]) -> None:
    with pytest.raises(UnusableTokens, match="of another entry"):
        parse_tokens(msgspec.json.encode({"tokens": [record(), record(**twice)]}), "tokens.json")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"tokens": [{"name": "x"}]}', b"[" * 10_000])
def test_a_file_that_is_none_is_refused_with_what_writes_one(content: bytes) -> None:
    with pytest.raises(UnusableTokens, match="is not a file of tokens"):
        parse_tokens(content, "tokens.json")


def test_the_first_start_makes_a_token_that_later_starts_keep(tmp_path: Path) -> None:
    """HTTP is closed without any configuration (E40)."""
    token = own_token(tmp_path)
    assert own_token(tmp_path) == token
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    (tmp_path / FILE).unlink()
    assert own_token(tmp_path) != token


def test_daemons_of_one_cluster_have_one_token_which_does_not_show_the_secret(tmp_path: Path) -> None:
    """The next leader lets in whom this one lets in (E40)."""
    secret = b"the cluster's secret, of 32 bytes or more"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert own_token(tmp_path / "a", secret) == own_token(tmp_path / "b", secret)
    assert own_token(tmp_path / "b", secret + b"!") != own_token(tmp_path / "a", secret)
    assert secret.hex() not in own_token(tmp_path / "a", secret).text


def test_a_token_of_the_daemon_that_others_can_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    own_token(tmp_path)
    (tmp_path / FILE).chmod(0o640 | 0o004)
    with pytest.raises(UnusableTokens, match="every user of this machine"):
        own_token(tmp_path)
    (tmp_path / FILE).chmod(0o600)
    (tmp_path / FILE).write_text("hello\n")
    with pytest.raises(UnusableTokens, match="holds no token"):
        own_token(tmp_path)


def test_an_entry_says_who_it_is() -> None:
    identity = record(jobs=("etl-*",)).identity
    assert (identity.name, identity.role, identity.jobs) == ("ci", Role.SUBMIT, ("etl-*",))
