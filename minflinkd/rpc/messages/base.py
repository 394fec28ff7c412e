"""What a message is, and the table of all of them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

R = TypeVar("R")


class Message(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Request(Message, Generic[R], frozen=True):
    """Answered by an R, or by an error."""


class Notice(Message, frozen=True):
    """Not answered; may be lost, doubled or late without harm."""


class Done(Message, frozen=True):
    """The answer that carries nothing."""


def _subclasses(kind: type[Message]) -> set[type[Message]]:
    found = {kind}
    child: type[Message]
    for child in kind.__subclasses__():
        found |= _subclasses(child)
    return found


def registry() -> dict[str, type[Message]]:
    """Message name -> class, for decoding. Names are stable: they are part of the protocol."""
    return {kind.__name__: kind for kind in _subclasses(Request) | _subclasses(Notice)}


def answer_type(request: type[Request[R]]) -> Any:
    """The R of a Request[R] class."""
    for base in getattr(request, "__orig_bases__", ()):
        args = getattr(base, "__args__", ())
        if args:
            return args[0]
    raise TypeError(f"{request.__name__} does not say what answers it")
