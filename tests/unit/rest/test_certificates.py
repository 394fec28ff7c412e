"""Whom a certificate names, and entries for certificates in the file of the tokens (E42)."""

from __future__ import annotations

import msgspec
import pytest

from minflinkd.rest.identity import certificates
from minflinkd.rest.identity.roles import Identity, Role, read, written
from minflinkd.rest.identity.tokens import Token, TokenRecord, UnusableTokens, new_hash, parse_tokens

SHOWN = {
    "subject": ((("organizationName", "B"),), (("commonName", "ci"),), (("commonName", "second"),)),
    "subjectAltName": (
        ("DNS", "ci.example"),
        ("email", "ci@b.example"),
        ("URI", "spiffe://b/ci"),
        ("IP Address", "10.0.0.7"),
        ("DirName", ((("commonName", "other"),),)),
    ),
    "notAfter": "Jan  1 00:00:00 2030 GMT",
}


def test_a_certificate_has_the_names_of_its_subject_and_its_alternative_names() -> None:
    """Each with its kind: a subject `ci.example` is not the host of that name."""
    assert certificates.names_of(SHOWN) == {
        "CN:ci",
        "CN:second",
        "DNS:ci.example",
        "email:ci@b.example",
        "URI:spiffe://b/ci",
    }
    assert certificates.names_of({}) == frozenset()
    assert certificates.ends_ms(SHOWN) == 1_893_456_000_000
    assert certificates.shown(SHOWN) == "CN:ci"
    assert certificates.shown({}) == "one without a name"


@pytest.mark.parametrize(
    ("given", "name"),
    [("ci", "CN:ci"), ("CN:ci", "CN:ci"), ("DNS:a.example", "DNS:a.example"), ("urn:x", "CN:urn:x")],
)
def test_a_name_without_a_kind_is_that_of_a_subject(given: str, name: str) -> None:
    assert certificates.full_name(given) == name


def entry(**changes: object) -> dict[str, object]:
    return {"name": "ci", "id": "0" * 16, "role": "submit", "certificate": "CN:ci"} | changes


def parsed(*entries: dict[str, object]) -> tuple[TokenRecord, ...]:
    return parse_tokens(msgspec.json.encode({"tokens": entries}), "tokens.json")


def test_an_entry_for_a_certificate_has_what_one_for_a_token_has_but_the_hash() -> None:
    """Role, jobs and expiry are the same, and it is read beside entries for tokens."""
    token = Token.new()
    other = {"name": "prometheus", "id": token.id, "role": "view", "hash": new_hash(token.secret)}
    found, _ = parsed(entry(jobs=["etl-*"], expires="2030-01-01T00:00:00Z"), other)
    assert found.identity == Identity(name="ci", role=Role.SUBMIT, jobs=("etl-*",), token_id="0" * 16)
    assert found.expired(1_893_456_000_000)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([entry(certificate="ci")], "a certificate 'ci' that is not one of CN:NAME"),
        ([entry(certificate="IP:10.0.0.1")], "is not one of"),
        ([entry(certificate="CN:")], "is not one of"),
        ([entry(certificate="CN: ")], "is not one of"),
        ([entry(certificate="CN:a\nb")], "cannot be printed"),
        ([entry(certificate="CN:" + "x" * 300)], "more than 256"),
        ([entry(hash="x")], "both a certificate and a hash"),
        ([entry(certificate="")], "a hash that is none"),
        ([entry(), entry(name="b", id="1" * 16)], "the name, id or certificate of another entry"),
    ],
)
def test_an_entry_that_is_wrong_is_refused_with_what_is_wrong(entries: list[dict[str, object]], problem: str) -> None:
    """Otherwise nobody could say who shows a certificate."""
    with pytest.raises(UnusableTokens, match=problem):
        parsed(*entries)


@pytest.mark.parametrize(
    "identity",
    [
        Identity(name="uid 1000", role=Role.ADMIN),
        Identity(name="ci", role=Role.SUBMIT, jobs=("etl-*", "übung"), token_id="0" * 16, until_ms=7),
    ],
)
def test_an_identity_can_be_sent_in_a_header(identity: Identity) -> None:
    assert written(identity).isascii()
    assert read(written(identity)) == identity


@pytest.mark.parametrize(
    "text", ["", "x", "e30=", "eyJuYW1lIjoxfQ==", "ÿ", written(Identity(name="a", role=Role.VIEW))[4:]]
)
def test_what_is_no_identity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read(text)
