"""What is stored of an OAuth grant: what people give as JSON, and what it becomes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.outward.credentials import Use
from ringfence.host.kernel.outward.grants import KIND, LONGEST, Access, Grant, Stored, given, opened, sealed
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.kernel.outward.storing import MAX_VALUE, check_value
from ringfence.host.kernel.outward.wishes import BindingWish, check_kind, kind_of, to_store

LEAST: dict[str, Any] = {"token_url": "https://auth.test/token", "client_id": "app", "refresh_token": "r3fresh"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def value(**fields: Any) -> Secret:
    return Secret(json.dumps({**LEAST, **fields}).encode())


def test_what_is_given() -> None:
    assert given(value()) == Stored(Grant("https://auth.test/token", "app", Secret(b"r3fresh")))
    whole = value(client_secret="s", scope="a b", client_auth="basic", token_url="https://auth.test:8443/a/b")
    assert given(whole).grant == Grant(
        "https://auth.test:8443/a/b", "app", Secret(b"r3fresh"), Secret(b"s"), "a b", "basic"
    )
    assert given(value(client_secret="", scope=[])).grant.client_secret is None


def test_files_of_other_tools() -> None:
    """gcloud's authorized_user, and what google-auth writes. Their access token is not taken: nobody knows how old it is."""
    google = {k: v for k, v in LEAST.items() if k != "token_url"} | {
        "type": "authorized_user", "token_uri": "https://oauth2.test/token", "client_secret": "s", "scopes": ["a", "b"],
        "token": "old", "universe_domain": "test", "account": "", "expiry": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    stored = given(Secret(json.dumps(google).encode()))
    assert (stored.grant.token_url, stored.grant.scope, stored.access) == ("https://oauth2.test/token", "a b", None)


@pytest.mark.parametrize("access", [None, Access(Secret(b"acc"), NOW, NOW + timedelta(hours=1))])
@pytest.mark.parametrize("secret", [None, Secret(b"s")])
def test_what_is_sealed_is_read_again(access: Access | None, secret: Secret | None) -> None:
    stored = Stored(Grant("https://auth.test/token", "app", Secret(b"r"), secret, "a"), access)
    assert opened(sealed(stored)) == stored


def test_the_longest_fit() -> None:
    longest = Secret(b"x" * LONGEST)
    stored = Stored(Grant("https://auth.test/t", "c" * 2048, longest, longest), Access(longest, NOW, NOW))
    assert len(check_value(sealed(stored))) <= MAX_VALUE


def test_nothing_of_it_shows() -> None:
    shown = repr(given(value(client_secret="s3cret")))
    assert "s3cret" not in shown and "r3fresh" not in shown and "auth.test" in shown


@pytest.mark.parametrize(
    "fields",
    [
        {"token_url": "http://auth.test/token"},
        {"token_url": ""},
        {"token_url": None},
        {"token_url": 1},
        {"token_url": "https://u:p@auth.test/token"},
        {"token_url": "https://10.0.0.1/token"},
        {"token_url": "https://[::1]/token"},
        {"token_url": "https://auth.test/../token"},
        {"token_url": "https://auth.test/token?x=1"},
        {"token_url": "https://auth.test/token#x"},
        {"token_url": "https:///token"},
        {"token_url": "https://auth.test:99999/token"},
        {"token_url": "https://[/token"},
        {"token_url": "auth.test/token"},
        {"token_url": "https://auth.test/\r\nX: y"},
        {"client_id": ""},
        {"client_id": None},
        {"client_id": "i\nd"},
        {"client_id": "x" * 3000},
        {"refresh_token": ""},
        {"refresh_token": "two words"},
        {"refresh_token": "two\nlines"},
        {"refresh_token": "é"},
        {"refresh_token": "x" * (LONGEST + 1)},
        {"refresh_token": ["r"]},
        {"client_secret": "a b"},
        {"client_secret": 7},
        {"scope": {"a": 1}},
        {"scope": ["a", 1]},
        {"client_auth": "mtls"},
        {"clientsecret": "s3cret"},
    ],
)
def test_what_is_no_grant(fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        given(value(**fields))
    told = caught.value.message
    assert caught.value.remedy and "s3cret" not in told and "two" not in told and "clientsecret" not in told
    given(value())  # control


@pytest.mark.parametrize("raw", [b"", b"r3fresh", b"[]", b"null", b'{"a":', b"\xff", b"[" * 100_000])
def test_what_is_no_json_object(raw: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        given(Secret(raw))
    assert "r3fresh" not in caught.value.message
    with pytest.raises(Invalid):
        opened(Secret(raw))


@pytest.mark.parametrize("access", [1, {}, {"token": "t"}, {"token": "t", "obtained_at": "x", "expires_at": 1}])
def test_a_stored_access_token_that_is_none(access: object) -> None:
    with pytest.raises(Invalid):
        opened(value(access=access))


def test_kinds_and_bindings() -> None:
    refresh, plain = BindingWish("oauth-refresh", host="a.test"), BindingWish("bearer", host="a.test")
    assert (kind_of(refresh), kind_of(plain), kind_of(None)) == (KIND, None, None)
    check_kind(KIND, refresh)
    check_kind(KIND, plain)  # the access token, as any other recipe has it
    check_kind("opaque", plain)
    with pytest.raises(Invalid):
        check_kind("opaque", refresh)
    with pytest.raises(Invalid):
        check_kind(KIND, BindingWish(use=Use.MOUNTED, environment=("T",)))
    assert opened(to_store(KIND, value(), headed=True)) == given(value())
    with pytest.raises(Invalid):
        to_store(KIND, Secret(b"one value"), headed=True)
    assert to_store("opaque", Secret(b"one value"), headed=True) == Secret(b"one value")
