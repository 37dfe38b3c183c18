"""What a credential of kind `oauth_refresh` is stored as: a JSON object of what its owner gave (RFC 6749 6) and the
access token that it was last good for. Pure.

Must never show a part of it, nor repeat in an error what somebody gave.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, TypeGuard
from urllib.parse import urlsplit

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward import authority
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.targets import target

KIND = "oauth_refresh"
LONGEST = (
    16 << 10
)  # characters of a token: three of them stay below storing.MAX_VALUE. Those with 200 groups have 10 Ki
_GIVEN = frozenset({"token_url", "client_id", "client_secret", "refresh_token", "scope", "client_auth"})
_ALIASES: Mapping[str, str] = MappingProxyType(
    {"token_uri": "token_url", "scopes": "scope"}
)  # as google-auth writes them
# In files of other tools beside what counts. An access token among them is not taken: how long it is good for is not
# known.
_PASSED = frozenset(
    {"type", "token", "access_token", "token_type", "id_token", "expires_in", "expires_at", "expiry"}
    | {"account", "universe_domain", "quota_project_id", "rapt_token", "trust_boundary"}
)
_SHOWN = re.compile(r"[\x21-\x7e]+")  # RFC 6749, appendix A: VSCHAR, and no space here


@dataclass(frozen=True, slots=True)
class Grant:
    """What the owner gave. `client_secret` None: a public client. `client_auth`: where its secret stands (RFC 6749
    2.3.1)."""

    token_url: str  # https, a name, no query
    client_id: str
    refresh_token: Secret
    client_secret: Secret | None = None
    scope: str = ""  # names with spaces between them; "" = as it was granted
    client_auth: Literal["body", "basic"] = "body"


@dataclass(frozen=True, slots=True)
class Access:
    """`expires_at` counts from before the question was sent, so that it is never later than the service's."""

    token: Secret
    obtained_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Stored:
    grant: Grant
    access: Access | None = None


def given(value: Secret) -> Stored:
    """Of what somebody gives as JSON: {"token_url", "client_id", "refresh_token"}, and if there are such
    "client_secret", "scope", "client_auth". Invalid, which repeats nothing of it."""
    raw = read_object(value.reveal())
    if raw is None:
        raise _not("it is no JSON object")
    named = {_ALIASES.get(name, name): each for name, each in raw.items() if name not in _PASSED}
    if not named.keys() <= _GIVEN:
        raise _not("it has fields that mean nothing here")
    return Stored(_grant(named))


def opened(value: Secret) -> Stored:
    """Of what `sealed` made. Invalid: it is none."""
    raw = read_object(value.reveal())
    if raw is None:
        raise _not("it is no JSON object")
    access = raw.pop("access", None)
    return Stored(_grant(raw), None if access is None else _access(access))


def sealed(stored: Stored) -> Secret:
    grant, access = stored.grant, stored.access
    made: dict[str, Any] = {
        "token_url": grant.token_url,
        "client_id": grant.client_id,
        "refresh_token": grant.refresh_token.reveal().decode(),
        "scope": grant.scope,
        "client_auth": grant.client_auth,
    }
    if grant.client_secret is not None:
        made["client_secret"] = grant.client_secret.reveal().decode()
    if access is not None:
        times = {"obtained_at": access.obtained_at.timestamp(), "expires_at": access.expires_at.timestamp()}
        made["access"] = {"token": access.token.reveal().decode(), **times}
    return Secret(json.dumps(made).encode())


def read_object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _grant(raw: Mapping[str, Any]) -> Grant:
    scope = raw.get("scope", "")
    if isinstance(scope, list) and all(isinstance(each, str) for each in scope):
        scope = " ".join(scope)
    for name, text, empty in (("client_id", raw.get("client_id"), False), ("scope", scope, True)):
        if not isinstance(text, str) or len(text) > 2048 or not (text.isascii() and text.isprintable()):
            raise _not(f"{name} is no printable ASCII of 2048 characters")
        if not text and not empty:
            raise _not(f"{name} is missing")
    secret, auth = raw.get("client_secret"), raw.get("client_auth", "body")
    if not is_token(raw.get("refresh_token")) or not (secret in (None, "") or is_token(secret)):
        raise _not(f"refresh_token or client_secret is no printable ASCII of {LONGEST} characters without spaces")
    if auth not in ("body", "basic"):
        raise _not("client_auth is neither body nor basic")
    return Grant(
        token_url=_address(raw.get("token_url")),
        client_id=str(raw["client_id"]),
        refresh_token=Secret(str(raw["refresh_token"]).encode()),
        client_secret=Secret(str(secret).encode()) if secret else None,
        scope=str(scope),
        client_auth=auth,
    )


def _address(url: object) -> str:
    """https, at a name, without user, query and fragment."""
    if not isinstance(url, str) or not url:
        raise _not("token_url is missing")
    try:
        parts = urlsplit(url)
        host, _ = authority.authority(parts.netloc, 443)
        target((parts.path or "/").encode())
    except (authority.Malformed, ValueError):
        raise _not("token_url is not https://HOST/PATH") from None
    if parts.scheme != "https" or parts.query or parts.fragment or authority.literal(host) is not None:
        raise _not("token_url is not https://HOST/PATH, at a name and without a query")
    return url


def _access(raw: object) -> Access:
    try:
        assert isinstance(raw, dict)
        times = [datetime.fromtimestamp(float(raw[name]), UTC) for name in ("obtained_at", "expires_at")]
        return Access(Secret(str(raw["token"]).encode()), *times)
    except (AssertionError, KeyError, TypeError, ValueError, OverflowError, OSError):
        raise _not("its access token is none") from None


def is_token(raw: object) -> TypeGuard[str]:
    return isinstance(raw, str) and len(raw) <= LONGEST and _SHOWN.fullmatch(raw) is not None


def _not(why: str) -> Invalid:
    remedy = '{"token_url": "https://...", "client_id": "...", "client_secret": "...", "refresh_token": "..."} on stdin'
    return Invalid(f"the value is no OAuth grant: {why}", remedy=f"give {remedy}")
