"""`/login`, `/logout` and `/whoami`: a browser logs in with a token or a one-time link, and gets a cookie (E41).

The cookie is `HttpOnly`, so that no script reads it, and `SameSite=Strict`, so that no other site's page uses it.
"""

from __future__ import annotations

import asyncio
from html import escape
from typing import Final
from urllib.parse import parse_qs

import msgspec
from aiohttp import web

from minflinkd.page.files import files
from minflinkd.rest import route
from minflinkd.rest.backend import json_answer
from minflinkd.rest.declared import JSON, Body, InQuery
from minflinkd.rest.errors import BodyTooSlow, InvalidRequest, UnsupportedMediaType
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.access import Access, cookie_name, identity_of, note_identity
from minflinkd.rest.identity.proving import Unauthenticated
from minflinkd.rest.identity.roles import Identity, Role
from minflinkd.rest.identity.sessions import CODE_LIFETIME, LIFETIME
from minflinkd.rest.route import Text
from minflinkd.rest.schemas import LoginLink, WhoAmI

FORM: Final = "application/x-www-form-urlencoded"
# With `no-referrer`, browsers send `Origin: null` with the form, which is refused as another origin's.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; font-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>minflinkd: log in</title>
<link rel="icon" href="/{at}style/icon.svg" type="image/svg+xml">
{styles}
</head>
<body>
<main class="entrance">
<h1>minflinkd</h1>
{why}<form method="post" action="/login">
<label>Token
<input class="field" name="token" type="password" autocomplete="current-password" required autofocus></label>
<button class="button primary">Log in</button>
</form>
<p class="muted">On the daemon's host, <code>minflinkd open</code> prints a link that logs in by itself.
</main>
</body>
</html>
"""
# A page of its own, not a redirection: the browser sends a strict cookie only with what this page asks for.
_WELCOME: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=/">
<title>minflinkd</title>
<p>You are logged in. <a href="/">Continue</a>
</html>
"""


class Credentials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str


_CREDENTIALS: Final = Body(Credentials, "The token; also from the form", media=(JSON, FORM))
_CODE: Final = InQuery[str | None]("code", "What the link of `minflinkd open` has", str, None)
_TO_THE_PAGE: Final = Text("", {"Location": "The page"})


class LoginRoutes:
    def __init__(self, access: Access, limits: Limits) -> None:
        self._access = access
        self._limits = limits

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/login",
                self.page,
                Role.ANYBODY,
                "A form for a token; with `code`, log in",
                {200: route.PAGE},
                query=(_CODE,),
                errors=(401,),
                more="Not in Flink",
            ),
            route.post(
                "/login",
                self.log_in,
                Role.ANYBODY,
                "Log in with a token, for a cookie",
                {200: WhoAmI, 303: _TO_THE_PAGE},
                body=_CREDENTIALS,
                errors=(401,),
                more=(
                    "Not in Flink. The token comes from the form or as JSON (`token`). To JSON the answer is 200 with "
                    "`name`, `role` and `jobs`, and a cookie"
                ),
            ),
            route.post(
                "/login/links",
                self.link,
                Role.VIEW,
                "Make a link that logs in once",
                {201: LoginLink},
                names_job=True,
                more=(
                    "Not in Flink. The answer has the `path` of the link, and for how many `seconds` it is good; `GET "
                    "/login?code=...` is that link"
                ),
            ),
            route.post(
                "/logout",
                self.log_out,
                Role.ANYBODY,
                "End the session of the cookie",
                {204: route.NOTHING},
                more="Not in Flink",
            ),
            route.get(
                "/whoami",
                self.who_am_i,
                Role.VIEW,
                "Who asks, and with which role",
                {200: WhoAmI},
                more="Not in Flink. `name`, `role` and `jobs`",
            ),
        ]

    async def page(self, request: web.Request) -> web.Response:
        """Answer the form; with `?code=`, log in by a one-time link."""
        secret = _CODE.of(request)
        if secret is None:
            return login_page(200)
        identity = self._access.sessions.codes.take(secret)
        if identity is None:
            raise _WrongLink(
                "the link was used before, or is older than a minute", hint="`minflinkd open` makes another"
            )
        return self._logged_in(
            request, identity, web.Response(text=_WELCOME, content_type="text/html", charset="utf-8")
        )

    async def log_in(self, request: web.Request) -> web.Response:
        """Take a token as JSON, or from the form. Answer who has logged in; to the form, the page."""
        token = await self._token(request)
        identity = await self._access.log_in(token)
        if request.content_type == FORM:
            return self._logged_in(request, identity, web.Response(status=303, headers={"Location": "/"}))
        return self._logged_in(request, identity, json_answer(_who(identity)))

    async def link(self, request: web.Request) -> web.Response:
        """Answer the path of a link that logs in once, as who asks for it."""
        code = self._access.sessions.codes.add(identity_of(request))
        return json_answer(LoginLink(path=f"/login?code={code}", seconds=int(CODE_LIFETIME)), status=201)

    async def log_out(self, request: web.Request) -> web.Response:
        if (cookie := request.cookies.get(cookie_name(request))) is not None:
            self._access.sessions.open.take(cookie)
        response = web.Response(status=204)
        response.del_cookie(cookie_name(request))
        return response

    async def who_am_i(self, request: web.Request) -> web.Response:
        return json_answer(_who(identity_of(request)))

    def _logged_in(self, request: web.Request, identity: Identity, response: web.Response) -> web.Response:
        note_identity(request, identity)
        response.set_cookie(
            cookie_name(request),
            self._access.sessions.open.add(identity),
            max_age=int(LIFETIME),
            httponly=True,
            samesite="Strict",
            secure=request.secure,
        )
        response.headers.update(_HEADERS)
        return response

    async def _token(self, request: web.Request) -> str:
        """Raises UnsupportedMediaType, InvalidRequest, BodyTooSlow."""
        if request.content_type not in _CREDENTIALS.media:
            raise UnsupportedMediaType(
                f"a body of type {request.content_type[:100]!r} is not taken here", hint='send {"token": "..."} as JSON'
            )
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                body = await request.content.read(_LARGEST + 1)
                while len(body) <= _LARGEST and not request.content.at_eof():
                    body += await request.content.read(_LARGEST + 1)
        except TimeoutError as error:
            raise BodyTooSlow("the token did not arrive in time", hint="send it again") from error
        if len(body) > _LARGEST:
            raise InvalidRequest("this is too long for a token", hint="it begins with mfl-")
        if request.content_type == FORM:
            return parse_qs(body.decode(errors="replace")).get("token", [""])[0].strip()
        try:
            return _CREDENTIALS.decoded(body).token
        except InvalidRequest:
            # Not msgspec's words: they might have a part of the token.
            raise InvalidRequest("the body names no token", hint='send {"token": "..."} as JSON') from None


_LARGEST: Final = 4096  # bytes of a body with a token


class _WrongLink(Unauthenticated):
    reason = "wrong-link"


def login_page(status: int, why: str = "") -> web.Response:
    """Return the form. `why`: what was wrong with the token."""
    found = files()
    styles = "\n".join(f'<link rel="stylesheet" href="/{found.path_of(name)}">' for name in found.styles)
    said = f'<p class="bad" role="alert">{escape(why)}</p>\n' if why else ""
    text = _PAGE.format(at=found.path_of(""), styles=styles, why=said)
    return web.Response(text=text, status=status, content_type="text/html", charset="utf-8", headers=_HEADERS)


def wants_page(request: web.Request) -> bool:
    """Whether a person looks at the answer."""
    asks = request.method == "GET" or request.content_type == FORM
    return asks and "text/html" in request.headers.get("Accept", "")


def _who(identity: Identity) -> WhoAmI:
    return WhoAmI(name=identity.name, role=str(identity.role), jobs=identity.jobs)
