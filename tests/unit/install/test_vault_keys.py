"""What `serve` reads for a server that may not, and how it reaches it: in memory, once, for its account alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.host.install import vault_keys
from ringfence.host.install.state import Account
from ringfence.host.kernel.errors import Unavailable
from ringfence.host.kernel.settings import Settings
from ringfence.host.kernel.vault_keys import VaultKeys
from ringfence.host.vault.keyring import Keyring, handed_over

ME = Account(os.geteuid(), os.getegid())
KEY, OLD = bytes(range(32)), b"o" * 32


def handed(folder: Path, key: str, old: tuple[str, ...] = (), **environment: str) -> Keyring:
    settings = Settings(vault=VaultKeys(key, old)).at(str(folder / "home"), "i" * 16, "root")
    given = vault_keys.hand_over(settings, environment, ME, folder)
    path = Path(given.handed)
    assert path.parent == folder and path.stat().st_mode & 0o777 == 0o600
    keys = handed_over(path)
    assert not path.exists(), "read once"
    assert handed_over(path).why, "and not again"
    return keys


def private(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def test_nothing_is_handed_over_without_a_source(tmp_path: Path) -> None:
    settings = Settings().at(str(tmp_path), "i" * 16, "root")
    assert vault_keys.hand_over(settings, {"KEY": "x"}, ME, tmp_path) == settings
    assert list(tmp_path.iterdir()) == []


def test_each_kind_of_source(tmp_path: Path) -> None:
    file = private(tmp_path / "key", KEY)
    private(tmp_path / "cred", KEY.hex().encode())
    program = tmp_path / "say"
    program.write_text(f"#!/bin/sh\necho $1; env > {tmp_path}/env\n")
    program.chmod(0o755)
    assert handed(tmp_path, f"file:{file}") == Keyring(KEY)
    assert handed(tmp_path, "env:THE_KEY", THE_KEY=KEY.hex()) == Keyring(KEY)
    assert handed(tmp_path, "credential:cred", CREDENTIALS_DIRECTORY=str(tmp_path)) == Keyring(KEY)
    assert handed(tmp_path, f"command:{program} {KEY.hex()}", SECRET_OF_SHELL="canary") == Keyring(KEY)
    assert "canary" not in (tmp_path / "env").read_text()
    keys = handed(tmp_path, f"file:{file}", ("env:OLD",), OLD=OLD.hex())
    assert (keys.mine, keys.others) == (KEY, (OLD,))


def test_old_ones_beside_the_states_own(tmp_path: Path) -> None:
    (tmp_path / "home" / "vault").mkdir(parents=True)
    private(tmp_path / "home" / "vault" / "master.key", KEY)
    keys = handed(tmp_path, "", ("env:OLD",), OLD=OLD.hex())
    assert (keys.mine, keys.others) == (KEY, (OLD,))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("file:{}/none", "No such file"),
        ("file:{}/loose", "others can read"),
        ("file:{}/short", "no key"),
        ("file:{}", "cannot be read|no key"),
        ("env:NOT_SET", "not set"),
        ("env:SHORT", "no key"),
        ("credential:x", "CREDENTIALS_DIRECTORY"),
        ("command:/bin/false", "ended with 1"),
        ("command:/bin/echo canary-of-a-key", "no key"),
        ("command:/does/not/exist", "cannot be run"),
        ("command:/bin/echo 'open", "cannot be run"),
        ("command:/usr/bin/head -c 10000 /dev/zero", "no key"),
    ],
)
def test_what_cannot_be_had_seals_the_vault_and_keeps_no_server_down(tmp_path: Path, source: str, why: str) -> None:
    private(tmp_path / "short", b"canary-of-a-key")
    private(tmp_path / "loose", KEY).chmod(0o640)
    keys = handed(tmp_path, source.format(tmp_path), SHORT="canary-of-a-key")
    assert not keys.mine
    assert any(word in keys.why for word in why.split("|")), keys.why
    assert keys.remedy
    if not source.startswith("command:"):  # its words are the operator's own, in the settings
        assert "canary" not in keys.why + keys.remedy


def test_a_command_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vault_keys, "COMMAND_SECONDS", 0.1)
    assert "longer" in handed(tmp_path, "command:/bin/sleep 60").why


def test_what_a_start_left_is_taken_away(tmp_path: Path) -> None:
    """It was handed over, and the server never looked."""
    settings = Settings(vault=VaultKeys("env:K")).at(str(tmp_path / "home"), "i" * 16, "root")
    left = vault_keys.hand_over(settings, {"K": KEY.hex()}, ME, tmp_path).handed
    other = tmp_path / f"ringfence-{'j' * 16}-0"
    other.touch()
    again = vault_keys.hand_over(settings, {"K": KEY.hex()}, ME, tmp_path).handed
    assert not Path(left).exists() and Path(again).exists() and other.exists()
    vault_keys.hand_over(Settings().at(str(tmp_path), "i" * 16, "root"), {}, ME, tmp_path)
    assert not Path(again).exists()


def test_what_others_put_there_keeps_no_server_down(tmp_path: Path) -> None:
    """Everybody may write in that place: a folder, a link, somebody else's file. Control: one's own file goes."""
    settings = Settings().at(str(tmp_path), "i" * 16, "root")
    names = [f"ringfence-{'i' * 16}-{each}" for each in ("folder", "link", "theirs", "own")]
    folder, link, theirs, own = (tmp_path / each for each in names)
    folder.mkdir()
    link.symlink_to(tmp_path / "elsewhere")
    theirs.write_text("x")
    own.write_text("x")
    another = Account(ME.uid + 1, ME.gid)
    if os.geteuid() == 0:
        os.chown(theirs, 12345, 12345)
    else:
        theirs.unlink()
    assert vault_keys.hand_over(settings, {}, another, tmp_path) == settings
    assert folder.is_dir() and link.is_symlink() and not own.exists()
    assert theirs.exists() == (os.geteuid() == 0)


def test_without_a_place_in_memory(tmp_path: Path) -> None:
    settings = Settings(vault=VaultKeys("env:K")).at(str(tmp_path), "i" * 16, "root")
    with pytest.raises(Unavailable, match="handed over") as error:
        vault_keys.hand_over(settings, {"K": KEY.hex()}, ME, tmp_path / "none")
    assert KEY.hex() not in str(error.value.as_json())


def test_a_file_that_others_made_is_none(tmp_path: Path) -> None:
    path = private(tmp_path / "forged", b'{"key": "", "old": [], "why": "", "remedy": ""}')
    path.chmod(0o644)
    assert "others" in handed_over(path).why
    for text in (b"", b"[]", b"{}", b'{"key": "AAAA", "old": [], "why": "", "remedy": ""}', b'{"key": 1, "old": []}'):
        assert handed_over(private(path, text)).why
