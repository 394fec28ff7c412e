"""The first three frames of a connection between a TaskManager and a daemon.

    daemon       Challenge   a nonce, and the protocol versions that it speaks
    TaskManager  Hello       its address, a nonce, the protocol versions that it speaks, and a proof
    daemon       Welcome     a proof
                 Refusal     instead, from a standby: where the leader is, and a proof (A13)

Both prove that they know the cluster's secret: HMAC-SHA256 over both nonces, the address and both ranges of versions.
So nobody between them can make them speak an older version than necessary. The proof of a Refusal also covers the
leader's address, so nobody else can send a TaskManager anywhere. The secret itself is never sent.

With TLS, the proofs also cover the certificate of the daemon (`server_certificate`). So nobody who ends TLS in between
can forward them, even with a certificate of the same CA, and later frames need no seals. Both sides use TLS, or neither
does, so no earlier version is asked for this.

Without TLS, from version SEALED on, all later frames are sealed with keys from this handshake (`rpc.seal`). A
TaskManager of an earlier version is still let in without, so that a new daemon can adopt it. Nobody can pretend that a
process is of an earlier version, because the ranges are proved.

Both sides send these frames before they agree on a version. So the frames keep their form in all versions: a field may
be added if it has a default, no field is removed or renamed, and the proof always covers the same fields. A Refusal
needs no version in common. A TaskManager of a version without Refusal cannot read it as a Welcome: it takes it for a
fault, and tries again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets

import msgspec

from minflinkd.rpc.codec import ProtocolError
from minflinkd.rpc.connection import read_frame, write_frame
from minflinkd.rpc.network import Address, Unreachable
from minflinkd.rpc.parties import DAEMON, Party
from minflinkd.rpc.peer import Peer
from minflinkd.rpc.protocol_range import SEALED, SPOKEN, ProtocolRange, agree
from minflinkd.rpc.seal import Seal, Seals, derived_key
from minflinkd.runtime.errors import MALFORMED, Consequence, MinflinkError
from minflinkd.runtime.ids import parse_resource_id
from minflinkd.runtime.tls import server_certificate

LIMIT = 4096  # bytes
TIMEOUT = 5.0  # seconds for all three frames
NONCE = 32  # bytes
TASK_MANAGERS = frozenset({Party.TASK_MANAGER})
TO_DAEMON, TO_TASK_MANAGER = "frames to the daemon", "frames to the TaskManager"
FAULTS = (MinflinkError, *MALFORMED, asyncio.IncompleteReadError, OSError, TimeoutError)


class AuthenticationFailed(MinflinkError):
    code = "rpc-authentication"
    consequence = Consequence.FATAL


class StandsBy(MinflinkError):
    """The daemon is a standby. `leader` is the `host:port` that it names; empty: it knows none."""

    code = "stands-by"
    consequence = Consequence.RETRYABLE

    def __init__(self, leader: str = "") -> None:
        super().__init__(
            f"the daemon is a standby, and names {leader} as the leader"
            if leader
            else "the daemon is a standby, and knows no leader"
        )
        self.leader = leader


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    oldest: int
    newest: int
    nonce: bytes

    @property
    def spoken(self) -> ProtocolRange:
        return ProtocolRange(self.oldest, self.newest)


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    oldest: int
    newest: int
    nonce: bytes
    proof: bytes

    @property
    def spoken(self) -> ProtocolRange:
        return ProtocolRange(self.oldest, self.newest)


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    proof: bytes


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Its fields must differ from those of Welcome, so that a side that knows only Welcome cannot read it as one."""

    leader: str  # host:port for TaskManagers; empty: this daemon knows no leader
    refusal_proof: bytes


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, secret: bytes, spoken: ProtocolRange = SPOKEN
) -> tuple[Address, Peer]:
    """The daemon's side. Return the TaskManager's address, and how to speak with it.

    Raises AuthenticationFailed, ProtocolMismatch and the other FAULTS.
    """
    challenge, hello = await _challenged(reader, writer, secret, spoken)
    protocol = agree(spoken, hello.spoken, other=hello.address)
    bound = server_certificate(writer)
    reply = Welcome(proof=_proof(secret, "server", challenge, hello.address, hello.nonce, hello.spoken, bound=bound))
    write_frame(writer, msgspec.msgpack.encode(reply))
    await writer.drain()
    ours, theirs = (_seal(secret, way, challenge, hello) for way in (TO_TASK_MANAGER, TO_DAEMON))
    sealed = protocol >= SEALED and not bound
    return Address(hello.address), Peer(TASK_MANAGERS, protocol, Seals(ours, theirs) if sealed else None)


async def refuse(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    secret: bytes,
    leader: str,
    spoken: ProtocolRange = SPOKEN,
) -> Address:
    """The standby's side. Tell a TaskManager of this cluster where the leader is. Return the TaskManager's address.

    Raises AuthenticationFailed and the other FAULTS. Then the TaskManager was not told.
    """
    challenge, hello = await _challenged(reader, writer, secret, spoken)
    bound = server_certificate(writer)
    proof = _proof(secret, "standby", challenge, hello.address, hello.nonce, hello.spoken, leader, bound=bound)
    write_frame(writer, msgspec.msgpack.encode(Refusal(leader=leader, refusal_proof=proof)))
    await writer.drain()
    return Address(hello.address)


async def _challenged(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, spoken: ProtocolRange
) -> tuple[Challenge, Hello]:
    """Send a Challenge. Return it, and the Hello of a TaskManager that knows the secret. Raises FAULTS."""
    challenge = Challenge(oldest=spoken.oldest, newest=spoken.newest, nonce=secrets.token_bytes(NONCE))
    write_frame(writer, msgspec.msgpack.encode(challenge))
    hello = msgspec.msgpack.decode(await read_frame(reader, LIMIT), type=Hello)
    name = repr(hello.address[:80])
    bound = server_certificate(writer)
    wanted = _proof(secret, "client", challenge, hello.address, hello.nonce, hello.spoken, bound=bound)
    if not hmac.compare_digest(wanted, hello.proof):
        raise AuthenticationFailed(f"{name} does not know the cluster's secret")
    kind, _, resource_id = hello.address.partition("/")
    if kind != "taskmanager":
        raise AuthenticationFailed(f"{name} is no TaskManager's address")
    parse_resource_id(resource_id)
    return challenge, hello


async def introduce(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    secret: bytes,
    address: Address,
    spoken: ProtocolRange = SPOKEN,
) -> Peer:
    """The TaskManager's side. Return how to speak with the daemon.

    Raises StandsBy, AuthenticationFailed, ProtocolMismatch and the other FAULTS.
    """
    challenge = _read_challenge(await read_frame(reader, LIMIT))
    nonce, bound = secrets.token_bytes(NONCE), server_certificate(writer)
    proof = _proof(secret, "client", challenge, address, nonce, spoken, bound=bound)
    hello = Hello(address=address, oldest=spoken.oldest, newest=spoken.newest, nonce=nonce, proof=proof)
    write_frame(
        writer, msgspec.msgpack.encode(hello)
    )  # even without a version in common: then the daemon's log says so, too
    await writer.drain()
    try:
        reply = _read_reply(await read_frame(reader, LIMIT))
    except asyncio.IncompleteReadError as error:
        agree(spoken, challenge.spoken, other="the daemon")  # if this was the reason, this error says more
        raise Unreachable("the daemon refused the handshake", hint="do both have the same cluster secret?") from error
    if isinstance(reply, Refusal):
        proof = _proof(secret, "standby", challenge, address, nonce, spoken, reply.leader, bound=bound)
        told = reply.refusal_proof
    else:
        proof = _proof(secret, "server", challenge, address, nonce, spoken, bound=bound)
        told = reply.proof
    if not hmac.compare_digest(proof, told):
        raise AuthenticationFailed("the daemon does not know the cluster's secret")
    if isinstance(reply, Refusal):
        raise StandsBy(reply.leader)
    protocol = agree(spoken, challenge.spoken, other="the daemon")
    ours, theirs = (_seal(secret, way, challenge, hello) for way in (TO_DAEMON, TO_TASK_MANAGER))
    return Peer(DAEMON, protocol, Seals(ours, theirs) if protocol >= SEALED and not bound else None)


def _read_challenge(data: bytes) -> Challenge:
    try:
        return msgspec.msgpack.decode(data, type=Challenge)
    except MALFORMED as error:
        raise ProtocolError(f"not a daemon's challenge: {error}", hint="check who uses this port") from error


def _read_reply(data: bytes) -> Welcome | Refusal:
    try:
        return msgspec.msgpack.decode(data, type=Welcome)
    except msgspec.ValidationError:
        return msgspec.msgpack.decode(data, type=Refusal)


def _proof(
    secret: bytes,
    role: str,
    challenge: Challenge,
    address: str,
    nonce: bytes,
    client_speaks: ProtocolRange,
    *told: str,
    bound: bytes = b"",
) -> bytes:
    """`told`: what else the proof covers. `bound`: what identifies the connection, with TLS."""
    proved = _said(role, challenge, address, nonce, client_speaks, *told, *((bound,) if bound else ()))
    return hmac.digest(secret, proved, hashlib.sha256)


def _seal(secret: bytes, way: str, challenge: Challenge, hello: Hello) -> Seal:
    """Return the seal of the frames that go this way. The context is none of a proof: the proofs are sent."""
    return Seal(derived_key(secret, _said(way, challenge, hello.address, hello.nonce, hello.spoken)))


def _said(
    role: str, challenge: Challenge, address: str, nonce: bytes, client_speaks: ProtocolRange, *told: str | bytes
) -> bytes:
    said = (role, challenge.nonce, nonce, address, *challenge.spoken, *client_speaks, *told)
    return msgspec.msgpack.encode(said)
