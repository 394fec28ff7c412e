"""Removes credentials from texts (S4): a backend's error messages end up in logs and HTTP answers."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from minflinkd.runtime.secrets import MASK, is_sensitive, without_credentials

_SHORTEST = 6  # characters; masking a shorter value would hide half of every text
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        # scheme://user:password@host; the user may be an access key
        (r"([a-z][a-z0-9+.-]*://)[^/\s@'\"<>]+:[^/\s@'\"<>]*@", rf"\1{MASK}@"),
        # AccountKey=..., sig=..., X-Amz-Signature=..., in connection strings, queries and forms
        (
            r"\b(AccountKey|SharedAccessKey|SharedAccessSignature|sig|signature|X-(?:Amz|Goog)-(?:Signature|Credential|"
            r"Security-Token)|AWSAccessKeyId|GoogleAccessId|access_token|refresh_token|id_token|client_secret|"
            r"password|secret)(=|%3D)[^\s&;,'\"<>)]+",
            rf"\1\2{MASK}",
        ),
        # password="..." in a JAAS configuration
        (r"\b(\w*(?:password|secret))(\s*=\s*)(['\"])(?:\\.|(?!\3).)*\3", rf"\1\2\3{MASK}\3"),
        # Authorization: Bearer ..., and the same inside a printed dict
        (r"\b(Bearer|Basic|SharedKey(?:Lite)?|GOOG1|AWS)(\s+)[A-Za-z0-9+/=._~:-]{8,}", rf"\1\2{MASK}"),
        (r"\b(AWS4-HMAC-SHA256)(\s+)[^'\"\n]+", rf"\1\2{MASK}"),
        # JSON and printed dicts: "private_key": "...", 'x-amz-security-token': '...'
        (
            r"(['\"][\w.-]*(?:secret|password|private[_-]?key|account[_-]?key|access[_-]?key|token|signature|"
            r"credential|authorization)[\w.-]*['\"]\s*:\s*)(['\"])(?:\\.|(?!\2).)*\2",
            rf"\1\2{MASK}\2",
        ),
        # <AWSAccessKeyId>...</AWSAccessKeyId> in the body of an S3 error
        (
            r"<(AWSAccessKeyId|SignatureProvided|StringToSign|StringToSignBytes|CanonicalRequest|CanonicalRequestBytes)>"
            r"[^<]*</",
            rf"<\1>{MASK}</",
        ),
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", MASK),
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", MASK),  # ids of AWS keys
        (r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", MASK),  # JSON web tokens
    )
)


class Mask:
    """Hides given values, in all encodings in which they are sent, and everything that looks like a credential."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= _SHORTEST for form in _forms(secret)}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._values = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, text: str) -> str:
        if self._values is not None:
            text = self._values.sub(MASK, text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text


def masked(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values as texts, without what their names or they themselves show to be secret, at any depth."""
    return {key: str(_without_secrets(key, value, Mask())) for key, value in values.items()}


def without_secrets(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of plain values without what looks like a secret in it; the rest keeps its type."""
    mask = Mask()
    return {key: _without_secrets(key, value, mask) for key, value in document.items()}


def _without_secrets(key: str, value: Any, mask: Mask) -> Any:
    if is_sensitive(key):
        return MASK
    if isinstance(value, Mapping):
        return {inner: _without_secrets(str(inner), entry, mask) for inner, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(key, entry, mask) for entry in value]
    return mask(without_credentials(value)) if isinstance(value, str) else value


def secrets_of(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> set[str]:
    """Return the values that must not be shown: of options, and of variables that give SDKs their credentials."""
    named = [*options.items(), *environment.items()]
    return {value for name, value in named if is_sensitive(name) and len(value) >= _SHORTEST}


def _forms(secret: str) -> set[str]:
    encoded = quote(secret, safe="")
    lines = {line for line in secret.splitlines() if len(line) >= 16}  # lines of a PEM key
    return {secret, encoded, encoded.lower(), repr(secret)[1:-1], base64.b64encode(secret.encode()).decode(), *lines}
