"""Why a TLS connection did not come about, as a sentence for people."""

from __future__ import annotations

import ssl

NO_TLS = "the other side does not speak TLS"
_BY_REASON = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client shows no certificate, and this server needs one",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server needs a certificate of its clients, and this one shows none",
    "UNSUPPORTED_PROTOCOL": "the other side speaks only TLS that is older than 1.2",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the two sides have no version of TLS in common; 1.2 is the oldest",
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not know the CA of this side's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other side says that this side's certificate has expired",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side refuses this side's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other side refuses this side's certificate",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the other side refuses the connection; perhaps it needs a certificate",
    "HTTP_REQUEST": "the client speaks HTTP without TLS",
    "HTTPS_PROXY_REQUEST": "the client speaks HTTP without TLS",
    "WRONG_VERSION_NUMBER": NO_TLS,
    "RECORD_LAYER_FAILURE": NO_TLS,
    "PACKET_LENGTH_TOO_LONG": NO_TLS,
}
# Codes of X509_verify_cert: https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/
_BY_CODE = {
    9: "the certificate of the other side is not valid yet; check the clocks of both hosts",
    10: "the certificate of the other side has expired",
    18: "the certificate of the other side is signed by itself, not by the CA that is configured here",
    19: "the certificate of the other side comes from another CA than the one that is configured here",
    20: "the certificate of the other side comes from another CA than the one that is configured here",
    21: "the certificate of the other side comes from another CA than the one that is configured here",
    7: "the certificate of the other side comes from another CA than the one that is configured here",
    26: "the certificate of the other side is not meant for this use",
    62: "the certificate of the other side does not name this host",
    64: "the certificate of the other side does not name this address",
}


def why_refused(error: BaseException | None) -> str:
    """Return the reason, or nothing if TLS is not it. Looks into the causes, as aiohttp wraps such errors."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None)  # of aiohttp
        if isinstance(inner, BaseException):
            error = inner
            continue
        if isinstance(error, ssl.SSLCertVerificationError):
            found = _BY_CODE.get(error.verify_code, f"the certificate of the other side is not valid: {error.reason}")
            return f"{found} ({error.verify_message})"
        if isinstance(error, ssl.SSLError):
            reason = error.reason or ""
            return _BY_REASON.get(reason, f"TLS failed: {reason.lower().replace('_', ' ') or error}")
        error = error.__cause__
    return ""
