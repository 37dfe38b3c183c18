"""K02, K05: a value that was stored, used, rotated and refused in every way is in no file, log, text or error. The control is
the same search where the value is in clear.
"""

from __future__ import annotations

import base64
import copy
import logging
import pickle
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from ringfence.host.kernel.errors import RingfenceError
from ringfence.host.kernel.ids import BoxId
from ringfence.host.kernel.outward.ports import Wanted
from ringfence.host.kernel.outward.secret import Secret
from ringfence.host.vault.release import Counter
from tests.support.databases import outside
from tests.support.store import a_team
from tests.support.vault_rig import CANARY, KEY, SECOND, a_vault, authorities, put_key, stored, value_of


def forms(value: bytes) -> Iterator[bytes]:
    """K02: plain, hex, base64 at each alignment, percent-encoded, reversed, halves."""
    yield from (value, value.hex().encode(), quote(value).encode(), value[::-1], value[: len(value) // 2])
    for shift in range(3):
        yield base64.b64encode(b"x" * shift + value)[4:-4]


def found(folder: Path, value: bytes, without: str = "") -> list[str]:
    """Files that have it in any form."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in without.split()]
    assert len(files) >= 3, "a search of nothing finds nothing"
    return [f"{path.name}: {form[:20]!r}" for path in files for form in forms(value) if form in path.read_bytes()]


async def test_k02_k05_the_value_is_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    put_key(tmp_path)
    said: list[str] = []
    async with a_team(tmp_path) as team:
        vault = await a_vault(tmp_path, team.store)
        made = await stored(team, vault)
        counter = Counter(vault, team.store.credentials, team.store.audit)
        wanted = Wanted(BoxId("b" * 16), team.alice.id, made.id, "", "inv", "api.test", "GET", "/")
        value = await counter.release(None, wanted)
        authority = await authorities(vault, team.store, team.clock).authority(team.tenant.id, team.alice.id)
        put_key(tmp_path, KEY, "master.key.old")
        put_key(tmp_path, SECOND)
        await vault.rotate(team.store.credentials)
        credential, sealed = await team.store.credentials.opening(made.id)
        for attempt in (
            vault.open(credential, replace(sealed, data=sealed.data[::-1])),
            vault.open(replace(credential, name="other"), sealed),
            vault.open(credential, replace(sealed, kek="0" * 16)),
            vault.put(team.store.credentials, made, Secret(CANARY)),
            vault.put(team.store.credentials, replace(made, id="crd_x", version=7), Secret(CANARY)),
            vault.put(team.store.credentials, replace(made, id="crd_y", name="a\0b"), Secret(CANARY)),
            vault.seal(made, Secret(CANARY * 2000)),
        ):
            with pytest.raises(RingfenceError) as error:
                await attempt
            said += [str(error.value), repr(error.value), str(error.value.as_json())]
            said += ["".join(traceback.format_exception(error.value))]
        said += [repr(one) for one in (value, vault, counter, authority, sealed, credential, made)]
        said += [f"{value}", f"{value!s:>80}", "%s %r" % (value, value), caplog.text]  # noqa: UP031  each way to print it
        assert await value_of(team.store, vault, made.id) == CANARY
        key = authority.key.reveal().splitlines()[1]
        for leak in (CANARY, key, KEY, SECOND):
            assert found(tmp_path, leak, "master.key master.key.old") == [], "database, -wal, witnesses"
            assert not [text for text in said for form in forms(leak) if form in text.encode()]
            assert repr(leak) not in "".join(said)
        # The control: what the search would find, in each place.
        outside(tmp_path, "UPDATE users SET name = ? WHERE name = 'bob'", CANARY.hex())
        assert found(tmp_path, CANARY)
        assert found(tmp_path, KEY), "the key's own file"


def test_k05_a_secret_goes_into_nothing() -> None:
    secret = Secret(CANARY)
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError) as error:
            copied(secret)
        assert "canary" not in str(error.value)
    with pytest.raises(TypeError):
        hash(secret)
    assert secret == Secret(CANARY) and secret != Secret(b"other") and secret != CANARY
