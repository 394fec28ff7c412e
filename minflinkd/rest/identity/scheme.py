"""Other ways than minflinkd's own tokens to prove who one is: the interface, and where schemes are found (E41).

A third party adds a scheme in a package of its own, with an entry point in the group `minflinkd.auth`. A scheme is used
if the configuration has an option of it: `security.auth.<scheme>.<option>`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final

from minflinkd.rest.errors import RequestError
from minflinkd.rest.identity.roles import Identity
from minflinkd.runtime.errors import Consequence, Kind, MinflinkError

GROUP: Final = "minflinkd.auth"
_OWN: Final = {"jwt": ("minflinkd.rest.identity.jwt_scheme", "JwtScheme", "jwt")}  # module, class, extra


class InvalidAuthOption(MinflinkError):
    """`security.auth.*` names a scheme that is not installed, or an option that it does not take."""

    code = "invalid-auth-option"
    consequence = Consequence.REFUSED


class SchemeUnavailable(RequestError):
    """What a scheme needs to check a token does not answer. The token may be right."""

    code = "scheme-unavailable"
    consequence = Consequence.RETRYABLE
    kind = Kind.CLUSTER
    status = 503


class Scheme(ABC):
    """Made once for a process, from its options. Raises InvalidAuthOption."""

    @abstractmethod
    def __init__(self, options: Mapping[str, str]) -> None: ...

    @abstractmethod
    async def identify(self, token: str) -> Identity | None:
        """Return whose token this is; None if it is none of this scheme.

        Must not block, and must bound what a wrong token costs: anybody can send one. Raises Unauthenticated,
        SchemeUnavailable.
        """


def new_schemes(options: Mapping[str, str]) -> tuple[Scheme, ...]:
    """Return the schemes of these options, which are named `<scheme>.<option>`. Raises InvalidAuthOption."""
    by_scheme: dict[str, dict[str, str]] = {}
    for key, value in options.items():
        name, dot, option = key.partition(".")
        if not dot or not option:
            raise InvalidAuthOption(
                f"security.auth.{key} names no option of a scheme", hint="such as security.auth.jwt.issuer"
            )
        by_scheme.setdefault(name, {})[option] = value
    return tuple(_class(name)(found) for name, found in by_scheme.items())


def _class(name: str) -> type[Scheme]:
    try:
        for point in entry_points(group=GROUP, name=name):
            loaded = point.load()
            assert isinstance(loaded, type)
            assert issubclass(loaded, Scheme)
            return loaded
        if name in _OWN:
            module, attribute, _ = _OWN[name]
            found: type[Scheme] = getattr(import_module(module), attribute)
            return found
    except (ImportError, AssertionError) as error:
        extra = f"pip install 'minflinkd[{_OWN[name][2]}]'" if name in _OWN else "install what its package needs"
        raise InvalidAuthOption(f"the scheme {name} (security.auth) cannot be loaded: {error}", hint=extra) from error
    known = sorted({*_OWN, *(point.name for point in entry_points(group=GROUP))})
    raise InvalidAuthOption(f"there is no scheme {name[:64]!r} (security.auth)", hint=f"there are: {', '.join(known)}")
