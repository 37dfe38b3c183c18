"""The state directory's place: what others could exchange is refused, with the command that mends it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence.host.install import atomic, prepare, state
from ringfence.host.install.layout import Layout
from ringfence.host.install.state import Account
from ringfence.host.kernel.errors import Refused, Unavailable
from ringfence.host.kernel.settings import Settings

ME = Account(os.geteuid(), os.getegid())


@pytest.fixture
def base() -> Iterator[Path]:
    """Not below pytest's own folder: its parents are 0700, and this is about parents."""
    with tempfile.TemporaryDirectory(prefix="ringfence-state-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def refused(home: Path) -> Refused:
    with pytest.raises(Refused) as raised:
        state.check_place(home, ME.uid)
    return raised.value


def test_a_place_of_ones_own(base: Path) -> None:
    state.check_place(base / "not" / "there" / "yet", ME.uid)
    (base / "home").mkdir()
    state.check_place(base / "home", ME.uid)


def test_a_link_is_refused_with_the_real_path(base: Path) -> None:
    (base / "real").mkdir()
    (base / "link").symlink_to("real")
    error = refused(base / "link")
    assert f"RINGFENCE_HOME={base / 'real'}" in error.remedy
    assert "link" in error.message
    (base / "real" / "home").mkdir()
    assert "above" in refused(base / "link" / "home").message


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o722])
def test_a_home_that_others_can_write(base: Path, mode: int) -> None:
    home = base / "home"
    home.mkdir()
    home.chmod(mode)
    assert refused(home).remedy == f"chmod go-w {home}"


def test_a_parent_that_others_can_rename_in(base: Path) -> None:
    (base / "open").mkdir()
    (base / "open" / "home").mkdir()
    (base / "open").chmod(0o777)
    assert str(base / "open") in refused(base / "open" / "home").remedy
    (base / "open").chmod(0o1777)  # sticky: others cannot rename what they do not own
    state.check_place(base / "open" / "home", ME.uid)


def test_a_file_in_its_place(base: Path) -> None:
    (base / "home").write_text("")
    assert "no folder" in refused(base / "home").message


def test_below_a_file(base: Path) -> None:
    (base / "file").write_text("")
    assert "is no folder" in refused(base / "file" / "home").message


def test_a_place_that_cannot_be_looked_at() -> None:
    assert "cannot be looked at" in refused(Path("/tmp") / ("x" * 300)).message


@pytest.mark.root
def test_a_home_or_parent_of_somebody_else(base: Path) -> None:
    (base / "theirs" / "home").mkdir(parents=True)
    os.chown(base / "theirs", 65534, 65534)
    assert "65534" in refused(base / "theirs" / "home").message
    assert "chown 0" in refused(base / "theirs").remedy


@pytest.mark.root
def test_a_parent_that_the_servers_account_cannot_enter(base: Path) -> None:
    (base / "private" / "home").mkdir(parents=True)
    account = Account(1879048192, 1879048192)
    state.check_reachable(base / "private" / "home", account)
    (base / "private").chmod(0o700)
    with pytest.raises(Refused) as raised:
        state.check_reachable(base / "private" / "home", account)
    assert raised.value.remedy.startswith(f"chmod o+x {base / 'private'}")
    os.chown(base / "private", account.uid, account.gid)
    state.check_reachable(base / "private" / "home", account)


def test_the_tree_is_made_once_and_mended(base: Path) -> None:
    layout = Layout(base / "home")
    state.make_home(layout, ME.uid)
    state.make_tree(layout, ME)
    assert not layout.master_key.exists(), "made with the installation alone"
    state.make_master_key(layout, ME)
    key, audit_key = layout.master_key.read_bytes(), layout.audit_key.read_bytes()
    assert len(key) == len(audit_key) == 32 and key != audit_key
    made = state.make_installation(layout, (0, 0))
    (layout.home / "vault").chmod(0o755)
    (layout.home / "boxes").chmod(0o700)
    state.make_home(layout, ME.uid)
    state.make_tree(layout, ME)
    state.make_master_key(layout, ME)
    modes = {p.name: p.stat().st_mode & 0o7777 for p in layout.home.iterdir()}
    assert modes == {
        "db": 0o700, "vault": 0o700, "snapshots": 0o700, "logs": 0o700, "run": 0o750, "boxes": 0o711, "spawner": 0o700, "runtime": 0o755,
        "installation.json": 0o644,
    }  # fmt: skip
    assert layout.home.stat().st_mode & 0o7777 == 0o711
    assert layout.master_key.read_bytes() == key
    assert layout.audit_key.read_bytes() == audit_key
    for path in (layout.master_key, layout.audit_key):
        assert path.stat().st_mode & 0o7777 == 0o600
    assert state.load(layout) == made


def test_a_link_in_the_tree_is_not_followed(base: Path) -> None:
    layout = Layout(base / "home")
    state.make_home(layout, ME.uid)
    (base / "elsewhere").mkdir(mode=0o755)
    (layout.home / "vault").symlink_to(base / "elsewhere")
    with pytest.raises(Refused, match="vault"):
        state.make_tree(layout, ME)
    assert list((base / "elsewhere").iterdir()) == []
    assert (base / "elsewhere").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_a_broken_key_is_not_replaced(base: Path, content: bytes) -> None:
    layout = Layout(base / "home")
    state.make_home(layout, ME.uid)
    state.make_tree(layout, ME)
    layout.audit_key.write_bytes(content)
    with pytest.raises(Unavailable, match="key"):
        state.make_tree(layout, ME)
    assert layout.audit_key.read_bytes() == content


@pytest.mark.parametrize("content", [b"", b"short", None])
def test_a_lost_master_key_keeps_no_server_down(base: Path, content: bytes | None) -> None:
    """The server starts with a sealed vault. A new key would open nothing, and nobody would know."""
    layout = Layout(base / "home")
    state.make_home(layout, ME.uid)
    state.make_tree(layout, ME)
    state.make_master_key(layout, ME)
    made = state.make_installation(layout, (0, 0))
    assert layout.master_key.stat().st_size == 32
    if content is None:
        layout.master_key.unlink()
    else:
        layout.master_key.write_bytes(content)
    assert prepare.make_state(layout, Settings(mode="subuid")).installation == made
    assert (layout.master_key.read_bytes() if layout.master_key.exists() else None) == content


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"id": "x", "ids": [1], "created_at": ""}', "\xff"])
def test_a_broken_installation_file(base: Path, text: str) -> None:
    layout = Layout(base / "home")
    state.make_home(layout, ME.uid)
    assert state.load(layout) is None
    layout.installation.write_bytes(text.encode("latin-1"))
    with pytest.raises(Unavailable, match="cannot be read"):
        state.load(layout)


def test_a_write_replaces_a_link_and_not_what_it_names(base: Path) -> None:
    """H/run belongs to the kernel's account, and root writes into it."""
    (base / "victim").write_text("kept")
    (base / "file").symlink_to("victim")
    atomic.write(base / "file", b"new", mode=0o600)
    assert (base / "victim").read_text() == "kept"
    assert (base / "file").read_text() == "new"
    assert not (base / "file").is_symlink()
    (base / "other").symlink_to("victim")
    assert atomic.create(base / "other", b"new", mode=0o600) is False
    assert (base / "victim").read_text() == "kept"
    with pytest.raises(OSError, match="symbolic"):
        atomic.read(base / "other")
    assert sorted(p.name for p in base.iterdir()) == ["file", "other", "victim"]
