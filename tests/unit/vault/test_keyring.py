"""Key files of the state: what is a key, what seals the vault, and why it says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.host.vault.keyring import Keyring, of_folder
from ringfence.host.vault.sealing import kek_id
from tests.support.vault_rig import KEY, SECOND, put_key


def test_the_present_one_and_those_of_before(tmp_path: Path) -> None:
    put_key(tmp_path)
    put_key(tmp_path, SECOND, "master.key.2025")
    put_key(tmp_path, b"short", "master.key.broken")
    put_key(tmp_path, b"x" * 32, "master.key.b~")
    keys = of_folder(tmp_path / "vault")
    assert (keys.mine, keys.others, keys.why) == (KEY, (SECOND,), "")
    assert (keys.present, keys.old) == (kek_id(KEY), [kek_id(SECOND)])
    assert keys.by_id(kek_id(SECOND)) == SECOND
    assert keys.by_id(kek_id(b"")) is keys.by_id("") is None
    assert "kkk" not in repr(keys) and "nnn" not in repr(keys)


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (None, 0, "No such file"),
        (b"short", 0o600, "not a key"),
        (KEY + b"x", 0o600, "not a key"),
        (KEY, 0o640, "others"),
    ],
)
def test_what_seals_it(tmp_path: Path, content: bytes | None, mode: int, why: str) -> None:
    put_key(tmp_path, SECOND, "master.key.old")
    if content is not None:
        put_key(tmp_path, content).chmod(mode)
    keys = of_folder(tmp_path / "vault")
    assert why in keys.why and keys.remedy
    assert not keys.mine and not keys.present


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    put_key(tmp_path, KEY, "elsewhere")
    (tmp_path / "vault" / "master.key").symlink_to("elsewhere")
    assert of_folder(tmp_path / "vault").why


def test_without_a_folder(tmp_path: Path) -> None:
    assert of_folder(tmp_path / "none").why
    assert Keyring().present == "" and Keyring().by_id("") is None
