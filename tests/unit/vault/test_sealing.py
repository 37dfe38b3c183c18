"""A sealed value opens as what it was sealed as, and as nothing else. K05, K07, K08 at the level of bytes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.host.kernel.errors import Failed
from ringfence.host.kernel.ids import TenantId, UserId
from ringfence.host.kernel.outward.credentials import Credential, Owner
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.vault import sealing

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CREDENTIAL = Credential("crd_a", TenantId("ten_a"), Owner.USER, UserId("usr_a"), "token", 3, "opaque", NOW, NOW)
KEY, OTHER = b"k" * 32, b"o" * 32
CANARY = Secret(b"canary-of-a-value")
OTHERS = {
    "tenant": replace(CREDENTIAL, tenant=TenantId("ten_b")),
    "owner": replace(CREDENTIAL, owner=Owner.SHARED),
    "user": replace(CREDENTIAL, user=UserId("usr_b")),
    "name": replace(CREDENTIAL, name="other"),
    "version": replace(CREDENTIAL, version=2),
    "id": replace(CREDENTIAL, id="crd_b"),
    "kind": replace(CREDENTIAL, kind="authority"),
    "reach": replace(CREDENTIAL, reach="[]"),
}


@given(st.binary(min_size=1, max_size=70_000))
def test_there_and_back(value: bytes) -> None:
    sealed = sealing.seal(KEY, CREDENTIAL, Secret(value))
    assert sealing.unseal(KEY, CREDENTIAL, sealed).reveal() == value
    assert len(value) < 8 or value not in sealed.data + sealed.wrapped_key
    moved = sealing.rewrap(KEY, OTHER, CREDENTIAL, sealed)
    assert (moved.data, moved.mac) == (sealed.data, sealed.mac)
    assert sealing.unseal(OTHER, CREDENTIAL, moved).reveal() == value


def test_the_same_value_is_never_sealed_alike() -> None:
    one, two = (sealing.seal(KEY, CREDENTIAL, CANARY) for _ in range(2))
    assert one.data != two.data and one.wrapped_key != two.wrapped_key and one.mac != two.mac


@pytest.mark.parametrize("what", OTHERS)
def test_it_opens_as_nothing_else(what: str) -> None:
    """Whatever the row that it was moved to says of itself."""
    sealed = sealing.seal(KEY, CREDENTIAL, CANARY)
    other = OTHERS[what]
    moved = replace(sealed, credential=other.id, version=other.version)
    for row in (sealed, moved):
        with pytest.raises(Failed):
            sealing.unseal(KEY, other, row)
    assert sealing.unseal(KEY, CREDENTIAL, sealed) == CANARY


def altered(kept: bytes) -> list[bytes]:
    flipped = [bytes(b ^ (1 << 7) if n == at else b for n, b in enumerate(kept)) for at in range(len(kept))]
    return [*flipped, b"", kept[:-1], kept[:27]]


def test_no_byte_may_change() -> None:
    sealed = sealing.seal(KEY, CREDENTIAL, CANARY)
    changed = [replace(sealed, data=one) for one in altered(sealed.data)]
    changed += [replace(sealed, wrapped_key=one) for one in altered(sealed.wrapped_key)]
    changed += [replace(sealed, mac=one) for one in ("", "0" * 64, sealed.mac[:-1], "\u00e9")]
    for one in changed:
        with pytest.raises(Failed) as error:
            sealing.unseal(KEY, CREDENTIAL, one)
        assert error.value.__cause__ is None and error.value.__suppress_context__
        assert "canary" not in repr(error.value) + str(error.value.as_json())


def test_the_key_and_no_other() -> None:
    sealed = sealing.seal(KEY, CREDENTIAL, CANARY)
    for attempt in (
        lambda: sealing.unseal(OTHER, CREDENTIAL, sealed),
        lambda: sealing.rewrap(OTHER, KEY, CREDENTIAL, sealed),
    ):
        with pytest.raises(Failed):
            attempt()


def test_a_newer_mac_does_not_go_with_an_older_version() -> None:
    """K07: the version is put back, and what the credential says of its newest is not. Control: with both put back nothing here
    can tell; the witnesses outside the database do."""
    older, newer = replace(CREDENTIAL, version=2), CREDENTIAL
    first, second = sealing.seal(KEY, older, CANARY), sealing.seal(KEY, newer, Secret(b"new"))
    with pytest.raises(Failed):
        sealing.unseal(KEY, older, replace(first, mac=second.mac))
    assert sealing.unseal(KEY, older, first) == CANARY


def test_ids_of_keys_tell_nothing_of_them() -> None:
    assert len(sealing.kek_id(KEY)) == 16 and sealing.kek_id(KEY) != sealing.kek_id(OTHER)
    assert KEY.hex() not in sealing.kek_id(KEY)
