"""When an access token is due, what is asked, what an answer says."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl

import pytest

from ringfence.host.kernel.outward.grants import Access, Grant, Stored
from ringfence.host.kernel.outward.renewing import (
    AFTER_401,
    AHEAD,
    MOST_WAIT,
    USUAL,
    WAITS,
    Due,
    Granted,
    NotGranted,
    answer,
    due,
    keeps,
    question,
    wait,
    with_granted,
    young,
)
from ringfence.host.kernel.outward.secret import Secret

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GRANT = Grant("https://auth.test/token", "app", Secret(b"r1"))


def access(seconds: float = 3600.0) -> Access:
    return Access(Secret(b"a1"), NOW, NOW + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("life", "after", "wanted"),
    [
        (3600, 0, Due.FRESH),
        (3600, 3600 - AHEAD - 1, Due.FRESH),
        (3600, 3600 - AHEAD, Due.SOON),
        (3600, 3599, Due.SOON),
        (3600, 3600, Due.NOW),
        (3600, 1 << 20, Due.NOW),
        (60, 47, Due.FRESH),
        (60, 48, Due.SOON),  # its last fifth
        (3600, -59, Due.FRESH),  # clocks of hosts differ
        (3600, -61, Due.NOW),  # turned back: its end says nothing
        (0, 0, Due.NOW),
        (-5, 0, Due.NOW),
    ],
)
def test_when(life: float, after: float, wanted: Due) -> None:
    assert due(access(life), NOW + timedelta(seconds=after)) is wanted
    assert due(None, NOW) is Due.NOW


@pytest.mark.parametrize("life", [1.0, 60.0, 3600.0, 86400.0])
def test_nobody_keeps_one_beyond_its_end(life: float) -> None:
    for part in range(100):
        now = NOW + timedelta(seconds=life * part / 100)
        kept = keeps(access(life), now)
        assert kept >= 1.0
        assert kept == 1.0 or now + timedelta(seconds=kept) <= NOW + timedelta(seconds=life)
        if due(access(life), now) is Due.FRESH and kept > 1.0:
            assert due(access(life), now + timedelta(seconds=kept)) is Due.SOON, "asked again just when it is due"


def test_a_young_one_is_not_what_a_401_is_about() -> None:
    assert young(access(), NOW) and young(access(), NOW + timedelta(seconds=AFTER_401 - 1))
    assert not young(access(), NOW + timedelta(seconds=AFTER_401))
    assert not young(access(), NOW - timedelta(seconds=1))


def test_waits() -> None:
    assert [wait(n, None) for n in range(1, 9)] == [*WAITS, WAITS[-1]]
    assert wait(1, 30.0) == 30.0 and wait(7, 30.0) == WAITS[-1] and wait(1, 1e9) == MOST_WAIT


# --- the question ----------------------------------------------------------------------------------------------------


def asked(grant: Grant) -> tuple[dict[bytes, bytes], dict[str, str]]:
    headers, body = question(grant)
    return dict(headers), dict(parse_qsl(body.reveal().decode(), strict_parsing=True))


def test_of_a_public_client() -> None:
    headers, form = asked(GRANT)
    assert form == {"grant_type": "refresh_token", "refresh_token": "r1", "client_id": "app"}
    assert headers == {b"content-type": b"application/x-www-form-urlencoded", b"accept": b"application/json"}


def test_of_one_with_a_secret() -> None:
    _, form = asked(Grant("https://auth.test/token", "app", Secret(b"r+/=&1"), Secret(b"s&=%"), "a b"))
    assert form == {
        "grant_type": "refresh_token", "refresh_token": "r+/=&1", "client_id": "app", "client_secret": "s&=%", "scope": "a b",
    }  # fmt: skip


def test_of_one_that_says_it_in_the_head() -> None:
    """RFC 6749 2.3.1: both are form-encoded first."""
    headers, form = asked(Grant("https://auth.test/token", "a:p", Secret(b"r1"), Secret(b"s:+"), client_auth="basic"))
    assert form == {"grant_type": "refresh_token", "refresh_token": "r1"}
    assert base64.b64decode(headers[b"authorization"].removeprefix(b"Basic ")) == b"a%3Ap:s%3A%2B"


# --- the answer ------------------------------------------------------------------------------------------------------


def said(status: int = 200, **fields: Any) -> Granted | NotGranted:
    return answer(status, json.dumps(fields).encode())


def test_a_token() -> None:
    assert said(access_token="access-2", token_type="Bearer", expires_in=60) == Granted(None, Secret(b"access-2"), 60.0)
    assert said(access_token="access-2", refresh_token="r2") == Granted(Secret(b"r2"), Secret(b"access-2"), USUAL)
    assert said(access_token="access-2", token_type="bot", expires_in="43200") == Granted(
        None, Secret(b"access-2"), 43200.0
    )


@pytest.mark.parametrize("seconds", [None, True, [], "soon", "1e3", float("nan")])
def test_a_life_that_is_not_said(seconds: object) -> None:
    assert said(access_token="access-2", expires_in=seconds) == Granted(None, Secret(b"access-2"), USUAL)


@pytest.mark.parametrize("seconds", [1 << 40, float("inf"), int("9" * 4000), "999999999999"])
def test_a_life_that_is_too_long_to_be_true(seconds: object) -> None:
    found = said(access_token="access-2", expires_in=seconds)
    assert isinstance(found, Granted) and found.seconds == 30 * 86400


@pytest.mark.parametrize(
    "fields",
    [
        {"access_token": "access-2", "expires_in": 0},
        {"access_token": "access-2", "expires_in": -1},
        {"access_token": "access-2", "expires_in": "-60"},
        {"access_token": "access-2", "expires_in": -int("9" * 4000)},
        {"access_token": "access-2", "expires_in": float("-inf")},
        {"access_token": "access-2", "token_type": "DPoP"},
        {"access_token": "access-2", "token_type": "mac"},
        {"access_token": ""},
        {"access_token": "seven77"},
        {"access_token": "a b"},
        {"access_token": "a\r\nX-Y: z"},
        {"access_token": "é"},
        {"access_token": 7},
        {"access_token": "x" * 20_000},
        {},
    ],
)
def test_no_token_that_is_of_use_and_yet_another_refresh_token(fields: dict[str, Any]) -> None:
    """The old one may be worth nothing from now on."""
    found = said(refresh_token="r2", **fields)
    assert isinstance(found, Granted) and found.access is None and found.why
    stored = Stored(GRANT, access())
    kept = with_granted(stored, found, NOW)
    assert kept.grant.refresh_token == Secret(b"r2") and kept.access == stored.access


@pytest.mark.parametrize("refresh", ["", "a b", 7, None, ["r2"]])
def test_a_refresh_token_that_is_none_leaves_the_one_before(refresh: object) -> None:
    found = said(access_token="access-2", expires_in=60, refresh_token=refresh)
    assert isinstance(found, Granted)
    kept = with_granted(Stored(GRANT), found, NOW)
    assert kept == Stored(GRANT, Access(Secret(b"access-2"), NOW, NOW + timedelta(seconds=60)))


@pytest.mark.parametrize(
    ("status", "fields", "final"),
    [
        (400, {"error": "invalid_grant"}, True),
        (401, {"error": "invalid_grant", "error_description": "s3cret"}, True),
        (200, {"error": "bad_refresh_token"}, True),
        (200, {"ok": False, "error": "invalid_refresh_token"}, True),
        (401, {"error": "invalid_client"}, False),
        (400, {"error": "s3cret"}, False),
        (400, {"error": ["invalid_grant"]}, False),
        (400, {}, False),
        (403, {"access_token": "access-2"}, False),
        (429, {"error": "slow_down"}, False),
        (500, {"error": "invalid_grant"}, False),  # a broken service says nothing about a token
        (503, {}, False),
        (204, {}, False),
        (200, {"ok": False, "access_token": "access-2"}, False),
    ],
)
def test_a_refusal(status: int, fields: dict[str, Any], final: bool) -> None:
    found = said(status, **fields)
    assert isinstance(found, NotGranted) and found.final is final
    assert str(status) in found.why and "s3cret" not in found.why


@pytest.mark.parametrize(
    "body", [b"", b"<html>s3cret</html>", b"[]", b'"a"', b"\xff\xfe", b"[" * 60_000, b"access_token=a"]
)
def test_what_is_no_answer(body: bytes) -> None:
    for status in (200, 400, 502):
        found = answer(status, body)
        assert isinstance(found, NotGranted) and not found.final and "s3cret" not in found.why
