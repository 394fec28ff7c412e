"""Tokens of an OpenID Connect issuer: signed JWTs, checked with the keys that the issuer publishes (E41)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import jwt
import msgspec
import structlog

from minflinkd.rest.guard import is_loopback
from minflinkd.rest.identity.proving import ExpiredToken, WrongToken
from minflinkd.rest.identity.roles import Identity, Role
from minflinkd.rest.identity.scheme import InvalidAuthOption, Scheme, SchemeUnavailable
from minflinkd.runtime.clock import Clock, SystemClock

log = structlog.get_logger(__name__)

# Signatures with a public key alone: with HMAC, whoever can check a token can make one.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_PUBLIC: Final = ("RSA", "EC", "OKP")  # kinds of keys; a published symmetric key would let everybody sign
LEEWAY: Final = 60.0  # seconds by which clocks may differ
KEYS_AGE: Final = 3600.0  # seconds after which the keys are fetched again, so that a withdrawn key ends
FETCH_PAUSE: Final = 10.0  # seconds between two fetches: a token with an unknown key is free to make
FETCH_TIMEOUT: Final = 10.0  # seconds
LARGEST: Final = 1 << 20  # bytes of a document of the issuer
_DISCOVERY: Final = "/.well-known/openid-configuration"


class JwtOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """`security.auth.jwt.<option>`."""

    issuer: str  # that a token must have
    audience: str  # likewise
    jwks_url: str = ""  # where its keys are; empty: as the issuer says
    name_claim: str = "sub"
    role_claim: str = "roles"
    roles: str = ""  # a role for values of the claim: `devs=submit,ops=admin`; empty: a value is the name of a role


class JwtScheme(Scheme):
    def __init__(self, options: Mapping[str, str], clock: Clock | None = None) -> None:
        try:
            given = msgspec.convert(dict(options), JwtOptions)
        except msgspec.ValidationError as error:
            raise InvalidAuthOption(
                f"security.auth.jwt: {error}", hint="docs/security.md has its options; issuer and audience are needed"
            ) from error
        if not (given.issuer and given.audience):
            raise InvalidAuthOption("security.auth.jwt: issuer and audience are needed", hint="name both")
        self._issuer, self._audience, self._jwks_url = given.issuer, given.audience, given.jwks_url
        for url in (given.issuer, given.jwks_url or given.issuer):
            _require_protected(url)
        self._name_claim, self._role_claim = given.name_claim, given.role_claim
        self._roles = _roles(given.roles)
        self._clock = clock or SystemClock()
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched = float("-inf")  # when the keys were fetched last
        self._tried = float("-inf")
        self._fetching = asyncio.Lock()

    async def identify(self, token: str) -> Identity | None:
        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError:
            return None
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise WrongToken("the token is not signed in a way that is taken here", hint="use a public key's signature")
        key = await self._key(str(header.get("kid", "")))
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", self._name_claim]},
            )
        except jwt.ExpiredSignatureError as error:
            raise ExpiredToken("the token has expired", hint="get another one from its issuer") from error
        except jwt.InvalidTokenError as error:
            raise WrongToken("the token is not valid here", hint=f"it must be one of {self._issuer}") from error
        return Identity(
            name=f"jwt {str(claims[self._name_claim])[:100]}",
            role=self._role(claims.get(self._role_claim)),
            until_ms=int(claims["exp"] * 1000),
        )

    def _role(self, claim: object) -> Role:
        """Return the highest role that the claim gives; ANYBODY if it gives none."""
        values = claim if isinstance(claim, list) else str(claim).split() if isinstance(claim, str) else []
        return max((self._roles.get(str(value), Role.ANYBODY) for value in values), default=Role.ANYBODY)

    async def _key(self, kid: str) -> jwt.PyJWK:
        """Raises WrongToken, SchemeUnavailable."""
        now = self._clock.monotonic()
        if kid in self._keys and now - self._fetched < KEYS_AGE:
            return self._keys[kid]
        if self._fetching.locked() or now - self._tried >= FETCH_PAUSE:  # otherwise the last answer counts
            async with self._fetching:
                if self._clock.monotonic() - self._tried >= FETCH_PAUSE:
                    try:
                        await self._fetch()
                    finally:  # an issuer that hangs is not asked again by each request that has waited
                        self._tried = self._clock.monotonic()
        if self._fetched == float("-inf"):
            raise SchemeUnavailable("the keys of the issuer could not be fetched", hint="try again in a moment")
        found = self._keys.get(kid)
        if found is None:
            raise WrongToken("the token is signed with a key that its issuer does not have", hint="get another one")
        return found

    async def _fetch(self) -> None:
        """Fetch the keys. If that fails, those from before stay valid for as long as nothing else is known."""
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FETCH_TIMEOUT)) as http:
                url = self._jwks_url or await _discovered(http, self._issuer)
                keys = jwt.PyJWKSet.from_dict(await _document(http, url)).keys
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, jwt.PyJWTError, InvalidAuthOption) as error:
            log.warning("the keys of the issuer cannot be fetched", issuer=self._issuer, error=str(error)[:200])
            return
        self._keys = {key.key_id or "": key for key in keys if key.key_type in _PUBLIC}
        self._fetched = self._clock.monotonic()


async def _discovered(http: aiohttp.ClientSession, issuer: str) -> str:
    """Return where the issuer publishes its keys.

    Raises aiohttp.ClientError, ValueError, KeyError, InvalidAuthOption.
    """
    described = await _document(http, issuer.rstrip("/") + _DISCOVERY)
    if described.get("issuer") != issuer:
        raise ValueError(f"the issuer calls itself {str(described.get('issuer'))[:200]!r}")
    url = str(described["jwks_uri"])
    _require_protected(url)
    return url


async def _document(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """Raises aiohttp.ClientError, ValueError."""
    async with http.get(url, allow_redirects=False, raise_for_status=True) as response:
        body = b""
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > LARGEST:
                raise ValueError(f"{url} is larger than {LARGEST:,} bytes")
    found = json.loads(body)
    if response.status != 200 or not isinstance(found, dict):
        raise ValueError(f"{url} has no document ({response.status})")
    return found


def _require_protected(url: str) -> None:
    """Keys that come over plain HTTP may be anybody's. Raises InvalidAuthOption."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        return
    raise InvalidAuthOption(f"{url[:200]!r} is no https URL (security.auth.jwt)", hint="use https")


def _roles(text: str) -> dict[str, Role]:
    """Return the role for each value of the claim. Raises InvalidAuthOption."""
    roles: dict[str, Role] = {str(role): role for role in Role if role is not Role.ANYBODY}
    if not text.strip():
        return roles
    found: dict[str, Role] = {}
    for part in text.split(","):
        value, equals, role = part.strip().rpartition("=")
        if not equals or not value or role not in roles:
            raise InvalidAuthOption(
                f"security.auth.jwt.roles: {part.strip()[:100]!r} is no value with a role",
                hint=f"such as devs=submit; the roles are {', '.join(roles)}",
            )
        found[value] = roles[role]
    return found
