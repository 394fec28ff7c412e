"""Tokens of an OpenID Connect issuer (E41), here one that runs in the test."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from minflinkd.rest.identity import jwt_scheme
from minflinkd.rest.identity.access import Access
from minflinkd.rest.identity.jwt_scheme import JwtScheme
from minflinkd.rest.identity.proving import ExpiredToken, TokenProver, WrongToken
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.identity.scheme import InvalidAuthOption, SchemeUnavailable, new_schemes
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.clock import SystemClock
from tests.component.rest.access_world import OWN, bearer, world

SECRET = b"a key that the issuer should never have published, 32 bytes"


class Issuer:
    def __init__(self) -> None:
        self.key = rsa.generate_private_key(65537, 2048)
        self.other = rsa.generate_private_key(65537, 2048)
        self.curve = ec.generate_private_key(ec.SECP256R1())
        self.url = ""
        self.calls_itself = ""
        self.fetched = 0
        self.withdrawn: set[str] = set()

    async def describe(self, _: web.Request) -> web.Response:
        return web.json_response({"issuer": self.calls_itself or self.url, "jwks_uri": f"{self.url}/keys"})

    async def keys(self, _: web.Request) -> web.Response:
        self.fetched += 1
        symmetric = {"kty": "oct", "kid": "h1", "k": base64.urlsafe_b64encode(SECRET).decode().rstrip("=")}
        keys: list[dict[str, Any]] = [
            {**RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True), "kid": "r1"},
            {**ECAlgorithm.to_jwk(self.curve.public_key(), as_dict=True), "kid": "e1"},
            symmetric,
        ]
        return web.json_response({"keys": [key for key in keys if key["kid"] not in self.withdrawn]})

    def token(self, key: Any = None, algorithm: str = "RS256", kid: str = "r1", **changes: Any) -> str:
        claims = {"iss": self.url, "aud": "minflinkd", "sub": "alice", "exp": time.time() + 600, "roles": ["operate"]}
        claims = {name: value for name, value in {**claims, **changes}.items() if value is not None}
        return jwt.encode(claims, key or self.key, algorithm=algorithm, headers={"kid": kid})


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    issuer = Issuer()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", issuer.describe)
    app.router.add_get("/keys", issuer.keys)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield issuer
    await runner.cleanup()


class HandClock(SystemClock):
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def scheme(issuer: Issuer, clock: HandClock | None = None, **more: str) -> JwtScheme:
    options = {"issuer": issuer.url, "audience": "minflinkd", **{k.replace("_", "-"): v for k, v in more.items()}}
    return JwtScheme(options, clock or HandClock())


async def test_a_token_of_the_issuer_says_who_and_with_which_role(issuer: Issuer) -> None:
    found = await scheme(issuer).identify(issuer.token())
    assert found is not None
    assert (found.name, found.role) == ("jwt alice", Role.OPERATE)
    assert abs(found.until_ms / 1000 - time.time() - 600) < 60
    by_curve = await scheme(issuer, jwks_url=f"{issuer.url}/keys").identify(issuer.token(issuer.curve, "ES256", "e1"))
    assert by_curve is not None


@pytest.mark.parametrize(
    ("claims", "options", "role"),
    [
        ({"roles": ["view", "submit", "x"]}, {}, Role.SUBMIT),
        ({"roles": "view operate"}, {}, Role.OPERATE),
        ({"roles": None}, {}, Role.ANYBODY),
        ({"roles": {"admin": True}}, {}, Role.ANYBODY),
        ({"roles": ["anybody", "ADMIN"]}, {}, Role.ANYBODY),
        ({"groups": ["devs"], "roles": ["admin"]}, {"role_claim": "groups", "roles": "devs=submit"}, Role.SUBMIT),
        ({"groups": ["admin"]}, {"role_claim": "groups", "roles": "devs=submit, ops=admin"}, Role.ANYBODY),
    ],
)
async def test_the_highest_role_of_the_claim_counts_and_nothing_else_gives_one(
    issuer: Issuer, claims: dict[str, Any], options: dict[str, str], role: Role
) -> None:
    found = await scheme(issuer, **options).identify(issuer.token(**claims))
    assert found is not None
    assert found.role is role


def signed_by_hand(issuer: Issuer) -> str:
    """Return a token that names the algorithm of a public key, and is signed with the published symmetric one."""
    head = base64.urlsafe_b64encode(json.dumps({"alg": "RS256", "kid": "h1"}).encode()).decode().rstrip("=")
    body = f"{head}.{issuer.token().split('.')[1]}"
    signature = hmac.digest(SECRET, body.encode(), "sha256")
    return f"{body}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def forged(issuer: Issuer, name: str) -> str:
    """Return a token that must not be taken."""
    none = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": "r1"}).encode()).decode().rstrip("=")
    return {
        "another key": lambda: issuer.token(issuer.other),
        "another issuer": lambda: issuer.token(iss="http://evil.example"),
        "another audience": lambda: issuer.token(aud="other"),
        "no audience": lambda: issuer.token(aud=None),
        "no issuer": lambda: issuer.token(iss=None),
        "no expiry": lambda: issuer.token(exp=None),
        "no name": lambda: issuer.token(sub=None),
        "not yet valid": lambda: issuer.token(nbf=time.time() + 600),
        "no signature": lambda: f"{none}.{issuer.token().split('.')[1]}.",
        "a symmetric signature": lambda: issuer.token(SECRET, "HS256", "h1"),
        "a symmetric signature that says otherwise": lambda: signed_by_hand(issuer),
        "an unknown key": lambda: issuer.token(kid="r9"),
        "a changed claim": lambda: ".".join([*issuer.token().split(".")[:2], issuer.token(sub="eve").split(".")[2]]),
    }[name]()


@pytest.mark.parametrize(
    "name",
    [
        *("another key", "another issuer", "another audience", "no audience", "no issuer", "no expiry", "no name"),
        *(
            "not yet valid",
            "no signature",
            "a symmetric signature",
            "a symmetric signature that says otherwise",
            "an unknown key",
            "a changed claim",
        ),
    ],
)
async def test_a_token_that_is_not_the_issuers_is_refused(issuer: Issuer, name: str) -> None:
    with pytest.raises(WrongToken):
        await scheme(issuer).identify(forged(issuer, name))


async def test_an_expired_token_is_refused_as_such(issuer: Issuer) -> None:
    with pytest.raises(ExpiredToken):
        await scheme(issuer).identify(issuer.token(exp=time.time() - 600))


@pytest.mark.parametrize("text", ["", "x", "a.b.c", f"mfl-{'0' * 16}-{'x' * 43}", "é.é.é"])
async def test_what_is_no_jwt_is_left_to_others(issuer: Issuer, text: str) -> None:
    assert await scheme(issuer).identify(text) is None
    assert issuer.fetched == 0


async def test_unknown_keys_do_not_make_the_daemon_fetch_again_and_again(issuer: Issuer) -> None:
    """Anybody can make such a token (E45)."""
    clock = HandClock()
    checked = scheme(issuer, clock)
    for _ in range(5):
        with pytest.raises(WrongToken):
            await checked.identify(issuer.token(kid="r9"))
    assert issuer.fetched == 1
    clock.now += jwt_scheme.FETCH_PAUSE
    assert await checked.identify(issuer.token()) is not None
    assert issuer.fetched == 1


async def test_a_withdrawn_key_ends_and_a_new_one_is_found(issuer: Issuer) -> None:
    clock = HandClock()
    checked = scheme(issuer, clock)
    issuer.withdrawn = {"e1"}
    assert await checked.identify(issuer.token()) is not None
    issuer.withdrawn = {"r1"}
    clock.now += jwt_scheme.FETCH_PAUSE
    assert await checked.identify(issuer.token(issuer.curve, "ES256", "e1")) is not None
    clock.now += jwt_scheme.KEYS_AGE
    with pytest.raises(WrongToken):
        await checked.identify(issuer.token())


async def test_without_the_issuer_a_token_is_neither_right_nor_wrong(issuer: Issuer) -> None:
    """A client may try again (E3). An issuer that calls itself otherwise is another one."""
    issuer.calls_itself = "http://127.0.0.1:1"
    checked = scheme(issuer)
    for _ in range(2):
        with pytest.raises(SchemeUnavailable):
            await checked.identify(issuer.token())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"jwt.issuer": "https://a"}, "missing required field `audience`"),
        ({"jwt.audience": "a"}, "missing required field `issuer`"),
        ({"jwt.issuer": "http://a.example", "jwt.audience": "a"}, "no https URL"),
        ({"jwt.issuer": "https://a", "jwt.audience": "a", "jwt.secret": "x"}, "unknown field `secret`"),
        ({"jwt.issuer": "https://a", "jwt.audience": "a", "jwt.roles": "devs=root"}, "no value with a role"),
        ({"ldap.url": "x"}, "there is no scheme 'ldap'"),
        ({"jwt": "x"}, "names no option of a scheme"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidAuthOption, match=problem):
        new_schemes(options)


async def test_a_scheme_of_a_third_party_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interface for other schemes is `minflinkd.auth` (E41)."""
    (tmp_path / "house_auth.py").write_text(
        "from minflinkd.rest.identity.roles import Identity, Role\n"
        "from minflinkd.rest.identity.scheme import Scheme\n"
        "class House(Scheme):\n"
        "    def __init__(self, options): self.word = options['word']\n"
        "    async def identify(self, token):\n"
        "        return Identity(name='guest', role=Role.VIEW) if token == self.word else None\n"
    )
    (tmp_path / "house_auth-1.dist-info").mkdir()
    (tmp_path / "house_auth-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: house-auth\nVersion: 1\n"
    )
    (tmp_path / "house_auth-1.dist-info" / "entry_points.txt").write_text(
        "[minflinkd.auth]\nhouse = house_auth:House\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (house,) = new_schemes({"house.word": "sesame"})
    assert (await house.identify("sesame"), await house.identify("x")) != (None, None)
    found = await house.identify("sesame")
    assert found is not None
    assert found.name == "guest"


async def test_over_http_its_tokens_work_besides_minflinkds_own(
    issuer: Issuer, network: LocalNetwork, tmp_path: Path
) -> None:
    async with world(network, tmp_path) as at:
        at.access._schemes = (scheme(issuer),)
        for token, status in ((issuer.token(), 200), (issuer.token(issuer.other), 401), (issuer.token(roles=[]), 403)):
            async with at.http.get("/whoami", headers={"Authorization": f"Bearer {token}"}) as response:
                assert response.status == status
        async with at.http.get("/whoami", headers=bearer(OWN)) as response:
            assert response.status == 200


async def test_a_browsers_session_ends_with_the_token_of_the_issuer(issuer: Issuer) -> None:
    """Not after half a day (E41)."""
    access = Access(TokenProver(OWN, (), SystemClock()), schemes=(scheme(issuer),))
    over = await access.log_in(issuer.token(exp=time.time() - 1))  # within the leeway for clocks
    lasting = await access.log_in(issuer.token())
    app, answers = web.Application(), []

    async def who(request: web.Request) -> web.Response:
        try:
            answers.append((await access.who(request)).name)
        except ExpiredToken:
            answers.append("expired")
        return web.Response()

    app.router.add_get("/", who)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        for identity in (over, lasting):
            cookie = f"minflinkd-{port}={access.sessions.open.add(identity)}"
            async with http.get("/", headers={"Cookie": cookie}):
                pass
    await runner.cleanup()
    assert answers == ["expired", "jwt alice"]
