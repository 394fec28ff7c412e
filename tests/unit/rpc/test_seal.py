"""Seals of frames, by themselves: what they cover, and how their keys are derived."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from minflinkd.rpc.handshake import TO_DAEMON, TO_TASK_MANAGER, Challenge, Hello, _seal
from minflinkd.rpc.seal import KEY, SIZE, FrameForged, Seal, derived_key

A, B = b"a" * KEY, b"b" * KEY


def test_a_seal_is_the_keyed_blake2b_of_number_and_content() -> None:
    """It stays so in all versions that speak this protocol (A15a)."""
    seal = Seal(A)
    for number in range(3):
        wanted = hashlib.blake2b(number.to_bytes(8, "big") + b"content", key=A, digest_size=SIZE)
        assert seal.next(b"content") == wanted.digest()


def test_each_number_each_key_and_each_content_has_its_own_seal() -> None:
    one, other = Seal(A), Seal(B)
    seals = [one.next(b"x"), one.next(b"x"), one.next(b"y"), other.next(b"x"), other.next(b"")]
    assert len(set(seals)) == len(seals)


def test_seals_are_checked_in_the_order_in_which_they_were_made() -> None:
    sent, received = Seal(A), Seal(A)
    first, second = sent.next(b"1"), sent.next(b"2")
    received.check(b"1", first)
    with pytest.raises(FrameForged, match="frame 2 of the connection"):
        received.check(b"1", first)
    with pytest.raises(FrameForged):
        Seal(A).check(b"2", second)


def test_keys_are_derived_as_hkdf_expands_them() -> None:
    """Compared with another implementation of RFC 5869."""
    for context in (b"", b"context", b"c" * 1000):
        assert derived_key(A, context) == HKDFExpand(SHA256(), KEY, context).derive(A)


def test_every_part_of_the_handshake_and_the_direction_change_the_key() -> None:
    """So the frames of one connection mean nothing in another one."""

    def seal(
        way: str = TO_DAEMON,
        *,
        secret: bytes = A,
        address: str = "taskmanager/tm-1",
        ours: bytes = b"c",
        theirs: bytes = b"h",
        oldest: int = 1,
    ) -> bytes:
        challenge = Challenge(oldest=oldest, newest=2, nonce=ours)
        hello = Hello(address=address, oldest=1, newest=2, nonce=theirs, proof=b"")
        return _seal(secret, way, challenge, hello).next(b"content")

    seals = [
        seal(),
        seal(TO_TASK_MANAGER),
        seal(secret=B),
        seal(address="taskmanager/tm-2"),
        seal(ours=b"x"),
        seal(theirs=b"x"),
        seal(oldest=2),
    ]
    assert len(set(seals)) == len(seals)
    assert seal().hex() == seal().hex()
