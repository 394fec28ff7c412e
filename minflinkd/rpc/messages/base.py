"""The base classes of messages, and the registry of all messages."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

R = TypeVar("R")


class Message(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Request(Message, Generic[R], frozen=True):
    """Answered by an R, or by an error."""


class Notice(Message, frozen=True):
    """Not answered. It does no harm if one is lost, doubled or late."""


class Done(Message, frozen=True):
    """An answer without content."""


def _subclasses(kind: type[Message]) -> set[type[Message]]:
    found = {kind}
    child: type[Message]
    for child in kind.__subclasses__():
        found |= _subclasses(child)
    return found


def registry() -> dict[str, type[Message]]:
    """Return message name -> class, for decoding. Names are part of the protocol and must not change."""
    return {kind.__name__: kind for kind in _subclasses(Request) | _subclasses(Notice)}


def answer_type(request: type[Request[R]]) -> Any:
    """Return the R of a Request[R] class."""
    for base in getattr(request, "__orig_bases__", ()):
        args = getattr(base, "__args__", ())
        if args:
            return args[0]
    raise TypeError(f"{request.__name__} does not say what answers it")
