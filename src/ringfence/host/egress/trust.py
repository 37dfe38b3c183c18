"""Which certificates servers are believed by: the roots of the configuration, and no other. No file is read.

A host has 150 roots, and reading them takes 20 ms: the template reads them once, before it forks, and a worker whose roots begin
with the same text takes what is there. It must never add a root to a context that is in use.
"""

from __future__ import annotations

import hashlib
import ssl


class Trust:
    """`prepared`: PEM of the roots that are likely to be asked for; "" for none."""

    def __init__(self, prepared: str = "") -> None:
        self._prepared = prepared
        self._context = _trusting(prepared) if prepared else None
        self._digest = b""  # of the roots that the context was given out for; 220 KB of text are not kept

    def context(self, roots: str) -> ssl.SSLContext:
        """By exactly `roots` (PEM); the same object as long as they are the same. ValueError, ssl.SSLError: they are none."""
        digest = hashlib.sha256(roots.encode()).digest()
        if self._context is not None and digest == self._digest:
            return self._context
        context = self._context
        if context is None or self._digest or not roots.startswith(self._prepared):
            context = _trusting(roots)
        elif more := roots.removeprefix(self._prepared):
            self._context = None  # should this fail, half of them may be in
            context.load_verify_locations(cadata=more)
        self._context, self._digest, self._prepared = context, digest, ""
        return context


def _trusting(roots: str) -> ssl.SSLContext:
    """A client's. Revocation is not looked up: that would be a request that nobody decided on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # certificate and name are required
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False
    context.set_alpn_protocols(["http/1.1"])
    context.load_verify_locations(cadata=roots)
    return context
