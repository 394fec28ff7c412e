"""Whom a client's certificate names (E42). Pure: whether the certificate is good, TLS has found out before.

A name has its kind in front: `CN:ci` of the subject; `DNS:ci.example`, `email:ci@b.example` or `URI:spiffe://b/ci` of
the alternative names. So nobody can be taken for another one whose CA puts the same text into another field.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

KINDS: Final = ("CN", "DNS", "email", "URI")
_LONGEST: Final = 256  # characters of a name in the file of the tokens
_SHOWN: Final = 100

Certificate = Mapping[str, Any]  # as `ssl.SSLSocket.getpeercert` returns it


def names_of(certificate: Certificate) -> frozenset[str]:
    """Return all names by which an entry may call the owner of this certificate."""
    subject = {f"CN:{value}" for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    alternative = {f"{kind}:{value}" for kind, value in certificate.get("subjectAltName", ()) if kind in KINDS}
    return frozenset(subject | alternative)


def ends_ms(certificate: Certificate) -> int:
    """Return when it expires, in milliseconds since 1970."""
    return round(ssl.cert_time_to_seconds(certificate["notAfter"]) * 1000)


def shown(certificate: Certificate) -> str:
    """Return a name for people."""
    return next(iter(sorted(names_of(certificate))), "one without a name")[:_SHOWN]


def full_name(text: str) -> str:
    """Return a name with its kind. Without one it is that of a subject."""
    return text if text.partition(":")[0] in KINDS else f"CN:{text}"


def problem_of(name: str) -> str:
    """Say what is wrong with a name in the file of the tokens; empty if nothing is."""
    kind, colon, rest = name.partition(":")
    if not colon or kind not in KINDS or not rest.strip():
        return f"a certificate {name[:64]!r} that is not one of {', '.join(f'{each}:NAME' for each in KINDS)}"
    if not name.isprintable() or len(name) > _LONGEST:
        return f"a certificate with a name that cannot be printed, or has more than {_LONGEST} characters"
    return ""
