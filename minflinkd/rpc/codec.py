"""Messages as bytes: MessagePack, with the name of each message's type. Never pickle."""

from __future__ import annotations

from typing import Any

import msgspec

from minflinkd.rpc.messages import Message, answer_type, registry
from minflinkd.runtime.errors import MALFORMED, Consequence, ErrorInfo, Kind, MinflinkError
from minflinkd.runtime.units import decode_unit, encode_unit


class ProtocolError(MinflinkError):
    """Bytes that do not belong to this protocol. If they are not even a frame, their connection is closed."""

    code = "rpc-protocol"
    consequence = Consequence.FATAL


class UnreadableMessage(ProtocolError):
    """A frame with a message that this version does not know or cannot read. Later frames can still be read.

    The message had no effect. No job is at fault: the other side has another version.
    """

    consequence = Consequence.REFUSED
    kind = Kind.CLUSTER


class Ask(msgspec.Struct, frozen=True, tag_field="frame", tag="ask"):
    id: int
    target: str
    type: str
    body: msgspec.Raw
    fence: str | None = None


class Tell(msgspec.Struct, frozen=True, tag_field="frame", tag="tell"):
    target: str
    type: str
    body: msgspec.Raw
    fence: str | None = None


class Answer(msgspec.Struct, frozen=True, tag_field="frame", tag="answer"):
    id: int
    body: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, tag_field="frame", tag="failure"):
    id: int
    error: ErrorInfo


Frame = Ask | Tell | Answer | Failure

_TO_DO = "both sides must run the same version of minflinkd, or adjacent versions: upgrade the older side"

_encoder = msgspec.msgpack.Encoder(enc_hook=encode_unit)
_frames: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


class Codec:
    """Encodes and decodes messages of the types that exist when it is created."""

    def __init__(self) -> None:
        self._types = registry()
        self._decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}

    def knows(self, name: str) -> bool:
        """Whether there is a message type of this name."""
        return name in self._types

    def encode_frame(self, frame: Frame) -> bytes:
        return _encoder.encode(frame)

    def decode_frame(self, data: bytes) -> Frame:
        """Raises ProtocolError."""
        try:
            return _frames.decode(data)
        except MALFORMED as error:
            raise ProtocolError(f"not a frame of this protocol: {error}") from error

    def encode(self, value: object) -> msgspec.Raw:
        return msgspec.Raw(_encoder.encode(value))

    def decode_message(self, name: str, body: msgspec.Raw) -> Message:
        """Raises UnreadableMessage for an unknown type or a body that does not fit it."""
        kind = self._types.get(name)
        if kind is None:
            raise UnreadableMessage(f"unknown message {name[:80]!r}", hint=_TO_DO)
        message: Message = self._decode(kind, body, name)
        return message

    def decode_answer(self, request: type[Any], body: msgspec.Raw) -> Any:
        """Raises UnreadableMessage."""
        return self._decode(answer_type(request), body, f"the answer to {request.__name__}")

    def _decode(self, kind: Any, body: msgspec.Raw, what: str) -> Any:
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.msgpack.Decoder(kind, dec_hook=decode_unit)
        try:
            return decoder.decode(body)
        except MALFORMED as error:
            raise UnreadableMessage(f"{what}: {error}", hint=_TO_DO) from error
