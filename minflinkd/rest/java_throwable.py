"""A failure as a serialized object of Java, which is how Flink's clients read the failure of a savepoint.

They read `class` and `stack-trace` beside it from nowhere else: without the object they cannot read the answer at all.
It is a `SerializedThrowable` of Flink, without the exception that it would otherwise carry along.
"""

from __future__ import annotations

import base64
import struct
from typing import Final

# The stream of Java's serialization up to the message: the classes, their fields, no cause.
_CLASSES: Final = bytes.fromhex(
    "aced0005737200296f72672e6170616368652e666c696e6b2e7574696c2e53657269616c697a65645468726f7761626c65"
    "65169df51fa713f30200034c001966756c6c537472696e676966696564537461636b54726163657400124c6a6176612f6c61"
    "6e672f537472696e673b4c00166f726967696e616c4572726f72436c6173734e616d6571007e00015b001373657269616c69"
    "7a6564457863657074696f6e7400025b42787200136a6176612e6c616e672e457863657074696f6ed0fd1f3e1a3b1cc40200"
    "00787200136a6176612e6c616e672e5468726f7761626c65d5c635273977b8cb0300044c000563617573657400154c6a6176"
    "612f6c616e672f5468726f7761626c653b4c000d64657461696c4d65737361676571007e00015b000a737461636b54726163"
    "6574001e5b4c6a6176612f6c616e672f537461636b5472616365456c656d656e743b4c001473757070726573736564457863"
    "657074696f6e737400104c6a6176612f7574696c2f4c6973743b787070"
)
# Between the message and the other texts: no stack frames of Java, nothing suppressed.
_NO_FRAMES: Final = bytes.fromhex(
    "7572001e5b4c6a6176612e6c616e672e537461636b5472616365456c656d656e743b02462a3c3cfd22390200007870000000"
    "007372001f6a6176612e7574696c2e436f6c6c656374696f6e7324456d7074794c6973747ab817b43ca79ede020000787078"
)
_TEXT: Final = b"t"
_LONG_TEXT: Final = b"|"
_NULL: Final = b"p"


def serialized_throwable(message: str, class_name: str, stack_trace: str) -> str:
    """Return the object, in base64."""
    stream = _CLASSES + _text(message) + _NO_FRAMES + _text(stack_trace) + _text(class_name) + _NULL
    return base64.b64encode(stream).decode()


def _text(text: str) -> bytes:
    data = b"".join(map(_modified_utf8, struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass"))))
    short = len(data) <= 0xFFFF
    return (_TEXT + struct.pack(">H", len(data)) if short else _LONG_TEXT + struct.pack(">Q", len(data))) + data


def _modified_utf8(unit: tuple[int]) -> bytes:
    """Return a unit of UTF-16 as Java does: two bytes for NUL, and halves of a character by themselves."""
    (half,) = unit
    return b"\xc0\x80" if half == 0 else chr(half).encode("utf-8", "surrogatepass")
