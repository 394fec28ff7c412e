"""The seal of a frame: without TLS, it shows that the frame comes from whoever did the handshake.

A handshake alone proves who is there at its moment. Somebody on the way can forward it, and go on with the connection
himself. So both sides derive keys from the cluster's secret and from what they said in the handshake, one key for each
direction. After the handshake every frame ends with a MAC over its number and its content. Who does not know the secret
cannot make one. A frame that was changed, added, repeated, moved, left out, or taken from the other direction or from
another connection has the wrong number or the wrong key, and ends the connection.

If frames are cut off at the end, no seal is missing. But whichever way a connection ends, both sides take it for lost:
open requests have an unknown outcome, and a TaskManager registers anew. So no end needs a proof.

Seals do not hide anything: whoever is on the way can read. Only TLS prevents that, and then no seals are needed.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from minflinkd.rpc.codec import ProtocolError

SIZE = 16  # bytes
KEY = 32  # bytes


class FrameForged(ProtocolError):
    """A frame does not come from the process that did the handshake, or not in this place. The connection is closed."""

    code = "rpc-frame-forged"


class Seal:
    """Makes or checks the seals of the frames in one direction, in their order."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2b(key=key, digest_size=SIZE)
        self._number = 0

    def next(self, data: bytes) -> bytes:
        """Return the seal of the next frame."""
        mac = self._keyed.copy()
        mac.update(self._number.to_bytes(8, "big"))
        mac.update(data)
        self._number += 1
        return mac.digest()

    def check(self, data: bytes, found: bytes) -> None:
        """Check the seal of the next frame. Raises FrameForged."""
        if not hmac.compare_digest(self.next(data), found):
            raise FrameForged(
                f"frame {self._number} of the connection has a wrong seal",
                hint="somebody between the processes changes what they send: find out who, and use TLS "
                "(security.ssl.internal.enabled)",
            )


@dataclass(frozen=True)
class Seals:
    """The seals of one connection, as one of its ends uses them."""

    sent: Seal
    received: Seal


def derived_key(secret: bytes, context: bytes) -> bytes:
    """Return a key for this context alone: HKDF-Expand with SHA-256 (RFC 5869), one block.

    The secret is random, so it needs no HKDF-Extract.
    """
    return hmac.digest(secret, context + b"\x01", hashlib.sha256)[:KEY]
