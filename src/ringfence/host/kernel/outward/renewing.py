"""Access tokens for a refresh token (RFC 6749 6): when another is due, what is sent, what an answer says. Pure.

Must never show what a service says in its own words: it knows the refresh token, and could say it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import quote_plus, urlencode

from ringfence.host.kernel.outward.grants import Access, Grant, Stored, is_token, read_object
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.wishes import MIN_HEADED

AHEAD = 300.0  # seconds before its end that a token is renewed: more than clocks of hosts differ, less than any life that is met
_SHARE = 5  # of a short life its last fifth, if that is less
USUAL = 3600.0  # seconds of a token whose service does not say (RFC 6749 5.1): what most give
_MOST = 30 * 86400.0  # what is said beyond is not relied on
_BACK = timedelta(seconds=60)  # a clock that was turned back further than that says nothing about a token's end
AFTER_401 = 60.0  # seconds: a token that is younger is not what a 401 is about; so a box that provokes them has one renewal a minute
WAITS = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)  # seconds after so many failures in a row
MOST_WAIT = 3600.0  # of what a service says itself

_PROVED = frozenset({"mac", "dpop", "pop"})  # token types that want a proof with each request
# What a refusal may be called here. RFC 6749 5.2; the others are GitHub's, Slack's and OpenID Connect's.
_GONE = frozenset({"invalid_grant", "bad_refresh_token", "invalid_refresh_token", "token_revoked", "token_expired"})
_WORDS = _GONE | {
    *("invalid_request", "invalid_client", "unauthorized_client", "unsupported_grant_type", "invalid_scope"),
    *("incorrect_client_credentials", "interaction_required", "login_required", "access_denied"),
    *("server_error", "temporarily_unavailable", "slow_down", "ratelimited"),
}
OWNER = "its owner signs in anew and stores what that gives: ringfence secret set U NAME"
LATER = "try again in a minute: ringfence secret ls U"


class Due(StrEnum):
    FRESH = "fresh"
    SOON = "soon"  # good still, and to be renewed
    NOW = "now"  # nothing to give until it is renewed


@dataclass(frozen=True, slots=True)
class Granted:
    """`access` None: none that could be used, `why` says so; the new refresh token counts all the same."""

    refresh_token: Secret | None  # None: the one before stays
    access: Secret | None
    seconds: float = 0.0
    why: str = ""


@dataclass(frozen=True, slots=True)
class NotGranted:
    """`final`: asking again with the same refresh token is of no use."""

    why: str
    final: bool = False


def with_granted(stored: Stored, granted: Granted, asked_at: datetime) -> Stored:
    """What is to be stored before the token is used. `asked_at`: before the question was sent."""
    grant = stored.grant
    if granted.refresh_token is not None:
        grant = replace(grant, refresh_token=granted.refresh_token)
    if granted.access is None:
        return Stored(grant, stored.access)
    return Stored(grant, Access(granted.access, asked_at, asked_at + timedelta(seconds=granted.seconds)))


def due(access: Access | None, now: datetime) -> Due:
    if access is None or now >= access.expires_at or now < access.obtained_at - _BACK:
        return Due.NOW
    return Due.FRESH if now < access.expires_at - _ahead(access) else Due.SOON


def keeps(access: Access, now: datetime) -> float:
    """Seconds that whoever was given it may go on with it without asking; at least one."""
    left = (access.expires_at - now).total_seconds()
    ahead = _ahead(access).total_seconds()
    return max(1.0, left - ahead if left > ahead else min(left, ahead / 10))


def young(access: Access, now: datetime) -> bool:
    return timedelta() <= now - access.obtained_at < timedelta(seconds=AFTER_401)


def wait(failures: int, said: float | None) -> float:
    """Seconds before the next question, after so many failures in a row, from 1. `said`: by the service."""
    usual = WAITS[min(failures, len(WAITS)) - 1]
    return usual if said is None else min(max(usual, said), MOST_WAIT)


# --- question and answer ---------------------------------------------------------------------------------------------


def question(grant: Grant) -> tuple[list[tuple[bytes, bytes]], Secret]:
    """(headers, body) of a POST to its address (RFC 6749 6)."""
    form = {"grant_type": "refresh_token", "refresh_token": grant.refresh_token.reveal().decode()}
    headers = [(b"content-type", b"application/x-www-form-urlencoded"), (b"accept", b"application/json")]
    if grant.client_secret is not None and grant.client_auth == "basic":
        pair = ":".join(quote_plus(each) for each in (grant.client_id, grant.client_secret.reveal().decode()))
        headers.append((b"authorization", b"Basic " + base64.b64encode(pair.encode())))
    else:
        form["client_id"] = grant.client_id
        if grant.client_secret is not None:
            form["client_secret"] = grant.client_secret.reveal().decode()
    if grant.scope:
        form["scope"] = grant.scope
    return headers, Secret(urlencode(form).encode())


def answer(status: int, body: bytes) -> Granted | NotGranted:
    """RFC 6749 5.1 and 5.2. Some services say an error with status 200."""
    raw = read_object(body)
    if raw is None:
        return NotGranted(f"it answered {status} and no JSON object")
    error = raw.get("error")
    if status != 200 or error is not None or raw.get("ok") is False:
        word = error if isinstance(error, str) and error in _WORDS else "another error"
        return NotGranted(f"it answered {status}, {word}", final=word in _GONE and 200 <= status < 500)
    refresh = raw.get("refresh_token")
    return _granted(raw, Secret(refresh.encode()) if is_token(refresh) else None)


def _granted(raw: Mapping[str, Any], refresh: Secret | None) -> Granted:
    token, kind = raw.get("access_token"), raw.get("token_type")
    if not is_token(token):
        return Granted(refresh, None, why="it gave no access token that could stand in a header")
    if isinstance(kind, str) and kind.lower() in _PROVED:
        return Granted(refresh, None, why="it gives tokens that want a proof with each request")
    seconds = _seconds(raw.get("expires_in"))
    if seconds <= 0:
        return Granted(refresh, None, why="it gave an access token that has ended already")
    if len(token) < MIN_HEADED:
        return Granted(refresh, None, why="it gave an access token that is too short to be masked in an answer")
    return Granted(refresh, Secret(token.encode()), seconds)


def _seconds(raw: object) -> float:
    """Some write it as a text."""
    if isinstance(raw, str) and re.fullmatch(r"-?[0-9]{1,12}", raw):
        raw = int(raw)
    if raw is None or isinstance(raw, bool) or not isinstance(raw, int | float):
        return USUAL
    return float(max(-1, min(raw, _MOST))) if raw == raw else USUAL  # NaN is not itself


def _ahead(access: Access) -> timedelta:
    return min(timedelta(seconds=AHEAD), (access.expires_at - access.obtained_at) / _SHARE)
