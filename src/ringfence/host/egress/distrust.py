"""Whether a box's program broke off because it does not trust the user's CA: the most useful thing that a log of the way out
can say to people. A guess from how a connection ended; it must never decide anything.

A program says so by an alert, in its handshake or, when it looks at the certificate later, on the first read after it. Some say
nothing and leave: asyncio in the handshake, node after it. That is told apart, as `closed`.
"""

from __future__ import annotations

import ssl

FINDING = "ca_distrusted"
# Alerts of RFC 8446 6.2 as OpenSSL names them when they are received.
_ALERTS = {
    "TLSV1_ALERT_UNKNOWN_CA": "unknown_ca",
    "SSLV3_ALERT_BAD_CERTIFICATE": "bad_certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "unsupported_certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "certificate_expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "certificate_unknown",
    "TLSV1_ALERT_ACCESS_DENIED": "access_denied",
    "TLSV1_ALERT_DECRYPT_ERROR": "decrypt_error",
}
_CLOSED = "closed"


def in_handshake(error: Exception) -> str | None:
    """An alert's name, `closed`, or None: it failed otherwise."""
    left = isinstance(error, (ConnectionError, ssl.SSLEOFError))
    return _alert(error) or (_CLOSED if left else None)


def after_it(error: Exception | None, *, silent: bool) -> str | None:
    """The same of a connection that ended after its handshake. `silent`: before a first byte."""
    return _alert(error) or (_CLOSED if silent else None)


def _alert(error: Exception | None) -> str | None:
    return _ALERTS.get(getattr(error, "reason", None) or "") if isinstance(error, ssl.SSLError) else None
