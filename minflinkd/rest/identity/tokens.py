"""Tokens: how they look, and the file that says whose they are (E41).

A token is `mfl-<id>-<secret>`. The file has the id, and of the secret only a salted scrypt hash. So whoever reads the
file cannot log in, and whoever does not know an id costs the daemon no hash: both parts are drawn at random.

An entry may name a client's certificate instead of a secret (E42): then no token proves it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Self

import msgspec

from minflinkd.rest.identity import certificates
from minflinkd.rest.identity.roles import Identity, Role
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.private_files import OTHERS, write_whole

OWN: Final = "daemon"  # name of the token that a daemon makes for itself
_ID_BYTES: Final = 8
_SECRET_BYTES: Final = 32
_TOKEN: Final = re.compile(r"mfl-([0-9a-f]{16})-([A-Za-z0-9_-]{43})")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH: Final = re.compile(r"scrypt:(\d{1,6}):(\d{1,2}):(\d{1,2}):([A-Za-z0-9_-]{22}):([A-Za-z0-9_-]{43})")
_COST: Final = (1 << 14, 8, 1)  # N, r, p: 16 MiB, some 40 ms
_MOST_MEMORY: Final = 64 << 20  # bytes that one hash may take
_MOST_BYTES: Final = 1 << 20  # of the file
_MOST_PATTERNS: Final = 100


class UnusableTokens(MinflinkError):
    """The file of the tokens cannot be read, or something in it is wrong."""

    code = "unusable-tokens"
    consequence = Consequence.REFUSED


@dataclass(frozen=True)
class Token:
    id: str
    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> Self:
        return cls(secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES))

    @classmethod
    def derived(cls, secret: bytes) -> Self:
        """Return the same token for the same secret. The token does not reveal the secret."""
        digest = hmac.digest(secret, b"http token", "sha256")
        return cls(hmac.digest(secret, b"http token id", "sha256").hex()[: 2 * _ID_BYTES], _text(digest))

    @classmethod
    def parsed(cls, text: str) -> Self | None:
        found = _TOKEN.fullmatch(text)
        return cls(found[1], found[2]) if found else None

    @property
    def text(self) -> str:
        return f"mfl-{self.id}-{self.secret}"


class TokenRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry of the file."""

    name: str
    id: str
    role: str
    hash: str = ""  # scrypt:N:r:p:salt:hash
    certificate: str = ""  # a name with its kind, such as `CN:ci`: who shows a certificate with it, instead of a token
    jobs: tuple[str, ...] = ()  # patterns of names, such as `etl-*`; empty: all
    created: datetime | None = None
    expires: datetime | None = None

    @property
    def identity(self) -> Identity:
        return Identity(name=self.name, role=Role[self.role.upper()], jobs=self.jobs, token_id=self.id)

    def expired(self, now_ms: int) -> bool:
        return self.expires is not None and self.expires.timestamp() * 1000 <= now_ms


class TokenFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tokens: tuple[TokenRecord, ...] = ()


def hash_of(secret: str, salt: bytes, cost: tuple[int, int, int] = _COST) -> str:
    """Slow on purpose: call it in a thread."""
    n, r, p = cost
    digest = hashlib.scrypt(secret.encode(), salt=salt, n=n, r=r, p=p, maxmem=2 * _MOST_MEMORY, dklen=32)
    return f"scrypt:{n}:{r}:{p}:{_text(salt)}:{_text(digest)}"


def new_hash(secret: str) -> str:
    return hash_of(secret, secrets.token_bytes(16))


def matches(secret: str, hashed: str) -> bool:
    """Slow on purpose: call it in a thread. Compares in constant time."""
    found = _HASH.fullmatch(hashed)
    if found is None:
        return False
    salt = base64.urlsafe_b64decode(found[4] + "==")
    return hmac.compare_digest(hash_of(secret, salt, (int(found[1]), int(found[2]), int(found[3]))), hashed)


def read_tokens(path: Path) -> tuple[TokenRecord, ...]:
    """Return the tokens of the file; none if there is no file. Blocking. Raises UnusableTokens."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
            open_to = path.stat().st_mode & OTHERS
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UnusableTokens(
            f"{path}, the file of the tokens (security.tokens-file), cannot be read: {error.strerror or error}",
            hint="let the daemon's user read it",
        ) from error
    if open_to:
        raise UnusableTokens(
            f"every user of this machine can read or change {path}, the file of the tokens",
            hint=f"take that away: chmod 600 {path}",
        )
    return parse_tokens(content, str(path))


def parse_tokens(content: bytes, name: str) -> tuple[TokenRecord, ...]:
    """Raises UnusableTokens."""
    if len(content) > _MOST_BYTES:
        raise UnusableTokens(f"{name} has more than {_MOST_BYTES:,} bytes", hint="delete tokens that nobody uses")
    try:
        found = msgspec.json.decode(content, type=TokenFile).tokens
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnusableTokens(
            f"{name} is not a file of tokens: {error}", hint="`minflinkd token create` writes such a file"
        ) from error
    names: set[str] = set()
    ids: set[str] = set()
    shown: set[str] = set()  # certificates
    for record in found:
        twice = record.name in names or record.id in ids or record.certificate in shown
        if problem := problem_of(record) or ("the name, id or certificate of another entry" if twice else ""):
            raise UnusableTokens(
                f"{name}: the token {record.name[:64]!r} has {problem}",
                hint="delete the entry, and make the token anew with `minflinkd token create`",
            )
        names.add(record.name)
        ids.add(record.id)
        shown.update(filter(None, [record.certificate]))
    return found


def is_name(text: str) -> bool:
    """Whether an entry may have this name."""
    return bool(_NAME.fullmatch(text)) and text != OWN


def problem_of(record: TokenRecord) -> str:
    """Say what is wrong with an entry; "" if nothing is."""
    if not is_name(record.name):
        return f"a name that is not allowed (letters, digits, . _ -; not {OWN})"
    if record.role not in roles():
        return f"the role {record.role[:64]!r}, which is none of {', '.join(roles())}"
    if not re.fullmatch(r"[0-9a-f]{16}", record.id):
        return "an id that is none"
    if len(record.jobs) > _MOST_PATTERNS or not all(record.jobs):
        return f"an empty pattern of jobs, or more than {_MOST_PATTERNS}"
    if record.expires is not None and record.expires.tzinfo is None:
        return "an expiry without a time zone"
    if record.certificate:
        return "both a certificate and a hash" if record.hash else certificates.problem_of(record.certificate)
    parts = _HASH.fullmatch(record.hash)
    if parts is None:
        return "a hash that is none"
    n, r, p = int(parts[1]), int(parts[2]), int(parts[3])
    if n < 2 or n & (n - 1) or r < 1 or not 1 <= p <= 4 or 128 * n * r > _MOST_MEMORY:
        return "a hash that costs too much, or nothing"
    return ""


def roles() -> tuple[str, ...]:
    """Return the names of the roles that a token may have."""
    return tuple(str(role) for role in Role if role is not Role.ANYBODY)


def write_tokens(path: Path, records: tuple[TokenRecord, ...]) -> None:
    """Write the file whole. Blocking. Raises OSError, UnusableTokens."""
    content = msgspec.json.format(msgspec.json.encode(TokenFile(tokens=records)), indent=2) + b"\n"
    parse_tokens(content, str(path))  # so that no file is written that the daemon would refuse
    write_whole(path, content, 0o600, as_owner_of=path if path.exists() else path.parent)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
