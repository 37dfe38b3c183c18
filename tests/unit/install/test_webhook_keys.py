"""Files of keys as `config check` and `doctor` see them: like the server, and without waiting."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ringfence.host.capabilities.keys import secret_of
from ringfence.host.install import commands, webhook_keys
from ringfence.host.install.layout import Layout
from ringfence.host.kernel.declared import Webhook
from ringfence.host.kernel.errors import Invalid
from ringfence.host.kernel.settings import Settings

KEY = "canary-0123456789"


def settings_for(path: Path) -> Settings:
    return replace(Settings(), webhook=(Webhook("pay", "https://h/p", str(path), "https://h/l"),))


def checked(home: Path, key: Path) -> commands.Answer:
    text = f'[[webhook]]\nname = "pay"\nurl = "https://h/p"\nsecret_file = "{key}"\nlookup_url = "https://h/l"\n'
    (home / "ringfence.toml").write_text(text)
    return commands.config_check({"RINGFENCE_HOME": str(home)}, None, as_json=False, rows=tuple)


def put(path: Path, mode: int, text: str = KEY) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_a_key_is_fine(tmp_path: Path, mode: int) -> None:
    key = put(tmp_path / "key", mode)
    assert checked(tmp_path, key).out == "ok\n"
    assert secret_of(str(key), "w") == KEY.encode()
    assert webhook_keys.rows(settings_for(key), Layout(tmp_path)) == []


@pytest.mark.parametrize("mode", [0o644, 0o606, 0o604, 0o660, 0o602])
def test_a_mode_is_wrong_for_both(tmp_path: Path, mode: int) -> None:
    key = put(tmp_path / "key", mode)
    answer = checked(tmp_path, key)
    assert (answer.code, f"has mode {mode:04o}" in answer.err, "canary" in answer.err) == (2, True, False)
    with pytest.raises(Invalid, match=f"has mode {mode:04o}"):
        secret_of(str(key), "w")
    [row] = webhook_keys.rows(settings_for(key), Layout(tmp_path))
    assert (row.ok, row.level) == (False, "required")


@pytest.mark.parametrize("kind", ["short", "fifo", "folder"])
def test_what_is_no_key_is_wrong_for_both(tmp_path: Path, kind: str) -> None:
    key = tmp_path / "key"
    match kind:
        case "short":
            put(key, 0o600, "canar")
        case "fifo":
            os.mkfifo(key, 0o600)
        case _:
            key.mkdir(mode=0o700)
    answer = checked(tmp_path, key)
    assert answer.code == 2 and "webhook pay" in answer.err
    with pytest.raises(Invalid):
        secret_of(str(key), "w")


def test_one_that_is_missing_is_a_note(tmp_path: Path) -> None:
    answer = checked(tmp_path, tmp_path / "key")
    assert answer.code == 0 and answer.out.startswith("ok\n")
    assert "is not there" in answer.out and "chmod" not in answer.out
    said = commands.config_check({"RINGFENCE_HOME": str(tmp_path)}, None, as_json=True, rows=tuple)
    assert len(json.loads(said.out)["notes"]) == 1
    [row] = webhook_keys.rows(settings_for(tmp_path / "key"), Layout(tmp_path))
    assert (row.ok, row.level) == (False, "info") and "chmod" not in row.remedy


@pytest.mark.root
def test_what_the_servers_account_cannot_read_is_wrong(tmp_path: Path) -> None:
    """Root reads everything; the control is the account that may."""
    uid = 1879048192
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.geteuid() and len(folder.parts) > 2:
            folder.chmod(folder.stat().st_mode | 0o011)
    made = {"id": "ins_x", "ids": [uid, uid + 9], "created_at": "now"}
    (tmp_path / "installation.json").write_text(json.dumps(made))
    key = put(tmp_path / "key", 0o600)
    assert f"cannot be read by the server's account, id {uid}" in checked(tmp_path, key).err
    put(key, 0o000)
    os.chown(key, uid, uid)
    assert checked(tmp_path, key).code == 2
    key.chmod(0o600)
    assert checked(tmp_path, key).out == "ok\n"
