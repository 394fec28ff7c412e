"""Where golden files lie, and what they look like."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.golden.messages import encoded_samples, wire_types
from tests.golden.shapes import Shape, shapes_of

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent
MESSAGES = "messages.json"  # name -> MessagePack in hexadecimal digits
SHAPES = "shapes.json"
STATE = "state"  # a state directory


def versions() -> list[str]:
    """Return the versions that there are golden files of."""
    return sorted(path.name for path in HERE.iterdir() if path.name[0].isdigit())


def read_messages(version: str) -> dict[str, bytes]:
    found = msgspec.json.decode((HERE / version / MESSAGES).read_bytes(), type=dict[str, str])
    return {name: bytes.fromhex(digits) for name, digits in found.items()}


def read_shapes(version: str) -> dict[str, Shape]:
    return msgspec.json.decode((HERE / version / SHAPES).read_bytes(), type=dict[str, Shape])


def write_messages(directory: Path) -> None:
    samples = {name: data.hex() for name, data in encoded_samples().items()}
    (directory / MESSAGES).write_bytes(_json(samples))
    (directory / SHAPES).write_bytes(_json(shapes_of(wire_types())))


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
