"""What a restore decides before it makes anything, and files of backups that are whole or not there."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ringfence.host.install import whole_file, whole_restore
from ringfence.host.install.layout import Layout
from ringfence.host.install.whole_file import Checked, Looked, Target
from ringfence.host.install.whole_restore import Wish
from ringfence.host.kernel.errors import Conflict, Invalid, Refused
from ringfence.host.kernel.life.backup_tar import Writing
from ringfence.host.kernel.settings_file import parse

ID = "abcdefghijklmnop"
MANIFEST = {
    "release": "1", "installation": ID, "created_at": "2026-01-01T00:00:00+00:00", "mode": "root", "boxes": 0,
    "snapshots": False, "spent": 0, "database": {"dialect": "sqlite", "schema": "0007", "generation": 1, "rows": 5},
}  # fmt: skip


def backup(settings: str | None = None, manifest: dict[str, Any] | None = None, *more: tuple[str, bytes]) -> bytes:
    out = Writing()
    data = out.manifest(manifest or MANIFEST) + out.part("database", b"rows")
    if settings is not None:
        data += out.part("ringfence.toml", settings.encode())
    data += out.part("boxes.json", b"")
    for item, content in more:
        data += out.part(item, content)
    return data + out.end({"gone": [], "lacks": []})


def looked(settings: str) -> Looked:
    return whole_file.look(io.BytesIO(backup(settings)))


def test_what_it_says() -> None:
    facts = looked("").facts()
    assert (facts["installation"], facts["rows"], facts["with_key"], facts["dialect"]) == (ID, 5, False, "sqlite")
    assert whole_file.look(io.BytesIO(backup(None, None, ("vault/master.key", bytes(32))))).key


@pytest.mark.parametrize(
    "item", ["vault/gate.key", "boxes/short/tree", "snapshots/x", "etc/passwd", "boxes/../tree", "vault/seen/x"]
)
def test_an_item_that_nobody_knows(item: str) -> None:
    with pytest.raises(Invalid):
        whole_file.look(io.BytesIO(backup(None, None, (item, b"x"))))


@pytest.mark.parametrize(
    "changes",
    [{"installation": "../../etc"}, {"installation": "A" * 16}, {"spent": -1}, {"spent": True}, {"spent": 1 << 40}, {"boxes": "1"},
     {"database": []}, {"release": None}, {"mode": 1}],
)  # fmt: skip
def test_a_manifest_of_another_shape(changes: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        whole_file.look(io.BytesIO(backup(None, {**MANIFEST, **changes})))


@pytest.mark.parametrize(
    "settings",
    [
        'python = "/tmp/evil"',
        'bwrap = "/tmp/evil"',
        'script = "/etc/shadow"',
        'cgroup_parent = "/x"',
        '[vault]\nkey = "command:/tmp/evil"',
    ],
)
def test_settings_of_root_want_trust(settings: str) -> None:
    wish = Wish(Path("b"))
    with pytest.raises(Refused):
        whole_restore._chosen(looked(settings), wish)
    assert whole_restore._chosen(looked(settings), Wish(Path("b"), trust=True))[1] == settings


def test_a_database_server_is_named_again() -> None:
    text = '# mine\ndatabase = "postgresql://u:p@old/db"\nmax_runs = 3\n[limits]\n  memory = "512MiB"\n'
    with pytest.raises(Refused, match="nothing says where"):
        whole_restore._chosen(looked(text), Wish(Path("b")))
    for given, url in (("postgresql://u:p@new/db", "postgresql://u:p@new/db"), ("sqlite", "")):
        settings, changed = whole_restore._chosen(looked(text), Wish(Path("b"), database=given))
        assert (settings.database, settings.max_runs) == (url, 3)
        assert "old" not in changed
        assert parse(changed, source="it") == settings
        assert "# mine" in changed


def test_a_key_of_a_table_is_no_database() -> None:
    """What looks like it further down is left alone."""
    text = '[[webhook]]\nname = "database"\nurl = "https://a.test/"\nlookup_url = "https://a.test/"\nsecret_file = "/database = 1"\n'
    settings, changed = whole_restore._chosen(looked(text), Wish(Path("b"), database="postgresql://u@h/db"))
    assert settings.database == "postgresql://u@h/db"
    assert text.strip() in changed


@pytest.mark.parametrize(
    ("spent", "moved", "following"),
    [
        (0, None, None),
        (1008, None, None),
        (1009, None, 1016),
        (1008, 2000, 2000),
        (5, 2000, 2000),
        (99_999, None, None),
        (1100, 1024, 1104),
    ],
)
def test_ids_that_were_spent(tmp_path: Path, spent: int, moved: int | None, following: int | None) -> None:
    """Of a range that begins with 1000: in blocks of 8 behind its first one, above whatever was given out in it."""
    old, new = Layout(tmp_path / "old"), Layout(tmp_path / "new")
    for layout in (old, new):
        layout.spawner.mkdir(parents=True)
    if moved is not None:
        (old.spawner / "next_id").write_text(str(moved))
    told = Looked({**MANIFEST, "spent": spent}, {}, "", 0, False)
    whole_restore._spend(old, new, told, (1000, 9999))
    kept = new.spawner / "next_id"
    assert (int(kept.read_text()) if kept.exists() else None) == following


# --- the file --------------------------------------------------------------------------------------------------------


def test_a_target_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    target = Target(tmp_path / "b.tar")
    data = backup("")
    for at in range(0, len(data), 1000):
        target.write(data[at : at + 1000])
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
    facts = target.keep()
    target.close()
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]
    assert (facts["size_bytes"], (tmp_path / "b.tar").read_bytes()) == (len(data), data)
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600


def test_a_target_that_is_cut_is_none(tmp_path: Path) -> None:
    target = Target(tmp_path / "b.tar")
    target.write(backup("")[:-1024])
    with pytest.raises(Invalid, match="cut"):
        target.keep()
    target.close()
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_was_taken_meanwhile(tmp_path: Path) -> None:
    target = Target(tmp_path / "b.tar")
    target.write(backup(""))
    (tmp_path / "b.tar").write_text("somebody's")
    with pytest.raises(Conflict):
        target.keep()
    target.close()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("b.tar", "somebody's")]
    with pytest.raises(Conflict):
        Target(tmp_path / "b.tar")


def test_who_writes_never_waits_for_a_reader_that_has_seen_enough() -> None:
    checked = Checked(io.BytesIO())
    for _ in range(100):
        checked.write(b"no backup at all" * 1000)
    with pytest.raises(Invalid):
        checked.end()
    assert threading.active_count() < 20


def test_a_file_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "."):
        with pytest.raises(Invalid), whole_file.opened(tmp_path / name):
            pass
