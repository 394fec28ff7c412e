"""Files with a password for ZooKeeper (A10)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from minflinkd.config.ha_options import ZooKeeper
from minflinkd.ha.zookeeper.credentials import Credentials, UnusableDigest, credentials


def test_without_a_file_nodes_belong_to_everybody() -> None:
    assert credentials(ZooKeeper()).for_kazoo() == {}


def test_the_password_of_a_digest_is_never_shown(tmp_path: Path) -> None:
    """A password may contain colons."""
    file = tmp_path / "digest"
    file.write_text("minflinkd:se:cret\n")
    found = credentials(ZooKeeper(digest_file=str(file)))
    assert found.for_kazoo()["auth_data"] == [("digest", "minflinkd:se:cret")]
    assert "cret" not in repr(found)


@pytest.mark.parametrize("content", ["", "minflinkd", "minflinkd:", ":secret", "a:b\nc:d"])
def test_a_file_that_holds_no_user_and_password_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "digest"
    file.write_text(content)
    with pytest.raises(UnusableDigest, match="does not contain user:password") as caught:
        credentials(ZooKeeper(digest_file=str(file)))
    assert str(file) in caught.value.message
    assert "digest-file" in caught.value.message


def test_a_file_that_is_not_there_is_named_with_its_option(tmp_path: Path) -> None:
    with pytest.raises(UnusableDigest, match=r"nowhere \(.*digest-file\) cannot be read"):
        credentials(ZooKeeper(digest_file=str(tmp_path / "nowhere")))


def test_sasl_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kazoo would say nothing, and never connect."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnusableDigest) as caught:
        credentials(ZooKeeper(sasl_file=str(tmp_path / "any")))
    assert caught.value.hint == "pip install 'minflinkd[zookeeper-sasl]'"


def test_sasl_owns_the_nodes_by_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    file = tmp_path / "sasl"
    file.write_text("minflinkd:secret")
    found = credentials(ZooKeeper(sasl_file=str(file)))
    assert found == Credentials("minflinkd", "secret", "high-availability.zookeeper.client.sasl-file")
    assert found.for_kazoo()["default_acl"][0].id.scheme == "sasl"
