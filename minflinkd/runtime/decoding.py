"""What decoding raises for data from outside: no JSON or MessagePack, of another form, no UTF-8, or nested too deep."""

from __future__ import annotations

import msgspec

MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
